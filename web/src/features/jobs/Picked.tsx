// Actions on the ticked jobs.
import { plural } from "@/shared/format/numbers";
import { Button, ButtonLink } from "@/shared/ui/Button";
import { comparePath } from "@/shared/url/pages";
import type { Picking } from "./JobsTable";
import { COMPARE_ID } from "./useJobKeys";

export function Picked({ picking, onClear }: { picking: Picking; onClear: () => void }) {
  const { picked, isFull } = picking;
  return (
    <>
      <span className="muted" role="status">
        {plural(picked.length, "job")} ticked{isFull && ", the most for one chart"}
      </span>
      <Button look="quiet" onClick={onClear}>
        Clear
      </Button>
      <ButtonLink id={COMPARE_ID} to={comparePath(picked)} aria-keyshortcuts="c">
        Compare
      </ButtonLink>
    </>
  );
}
