// The folders that a checkpoint was exported to.
import { bytes, plural } from "@/shared/format/numbers";
import { CodeWithCopy } from "@/shared/ui/CommandLine";
import { Popover } from "@/shared/ui/Popover";
import type { Exported } from "./operations";

export function Exports({ of, found }: { of: string; found: readonly Exported[] }) {
  if (found.length === 0) return null;
  return (
    <Popover label={`Exports of ${of}`} buttonClassName="link" button="Exported">
      {found.map((one) => (
        <div key={one.place}>
          <p>
            {one.format}, {one.dtype}, {plural(one.files, "file")}, {bytes(one.size)}
          </p>
          {[one.path, one.place].map((text) => (
            <div key={text}>
              <CodeWithCopy text={text} />
            </div>
          ))}
        </div>
      ))}
    </Popover>
  );
}
