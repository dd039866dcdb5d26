// Forecasts the start of a spec if it were submitted now: TOML, or the spec of a job.
import { useMutation, useQuery } from "@tanstack/react-query";
import { useEffect, useId, useState } from "react";
import { ApiError } from "@/shared/api/errors";
import { jobQuery } from "@/shared/api/queries";
import type { WhatIf } from "@/shared/api/types";
import { type JsonObject, sparseSpec } from "@/shared/format/document";
import { count } from "@/shared/format/numbers";
import { command } from "@/shared/format/shell";
import { moment } from "@/shared/format/time";
import { readSpecText, sparseToml, specToml } from "@/shared/format/toml";
import { FindJob } from "@/shared/job/FindJob";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Dialog } from "@/shared/ui/Dialog";
import { InlineError } from "@/shared/ui/Notice";
import { useNow } from "@/shared/ui/RelativeTime";
import { postWhatIf } from "./api";
import { startWords } from "./start";

const EXAMPLE = specToml({ resources: { world_size: 4, priority: "high" } });

interface WhatIfDialogProps {
  /** Id of the job with the initial spec; null for the example. */
  from: string | null;
  onPick: (id: string) => void;
  onClose: () => void;
}

export function WhatIfDialog({ from, onPick, onClose }: WhatIfDialogProps) {
  const area = useId();
  const [text, setText] = useState(EXAMPLE);
  const { spec, error } = readSpecText(text);
  const answer = useMutation({ mutationFn: (asked: JsonObject) => postWhatIf(asked) });
  const { reset } = answer;
  const source = useQuery({ ...jobQuery(from ?? ""), enabled: from !== null });
  const [read, setRead] = useState<string | null>(null);
  useEffect(() => {
    if (!source.data || read === source.data.id) return;
    setRead(source.data.id);
    // The spec came as JSON and is read as JSON again.
    const whole = source.data.spec as unknown as JsonObject;
    setText(sparseToml(sparseSpec(whole, source.data.set_fields)));
    reset();
  }, [source.data, read, reset]);
  return (
    <Dialog
      wide
      title="When would a job start?"
      onClose={onClose}
      footer={
        <>
          <Button onClick={onClose}>Close</Button>
          <Button
            look="primary"
            busy={answer.isPending}
            disabled={spec === null}
            onClick={() => spec && answer.mutate(spec)}
          >
            Forecast
          </Button>
        </>
      }
    >
      <FindJob verb="Take the spec of a job" onFind={onPick} />
      {source.error && <InlineError error={source.error} />}
      <label htmlFor={area} className="field-label">
        Spec as TOML; absent fields have their defaults
      </label>
      <textarea
        id={area}
        className="textarea mono"
        rows={12}
        spellCheck={false}
        aria-invalid={error !== null || undefined}
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          reset();
        }}
      />
      {error && <p className="field-error">{error}</p>}
      {answer.data && <Answer answer={answer.data} />}
      {answer.error && <Refusal error={answer.error} />}
      <CommandLine
        command={command("queue", "--what-if", "job.toml")}
        label="The same by command"
      />
    </Dialog>
  );
}

function Answer({ answer }: { answer: WhatIf }) {
  const now = useNow();
  const { expected_start_at: at, unknown_because: why, position, reason } = answer;
  return (
    <div className="queue-answer" role="status">
      <p>
        <strong>
          {answer.starts_now
            ? "It would start immediately."
            : `It would wait at position ${count(position)}.`}
        </strong>{" "}
        {at && !answer.starts_now && `Expected start: ${startWords(at, now)}, ${moment(at)}.`}
        {why && `No expected start: ${why}.`}
      </p>
      {reason && <p className="muted">{reason}</p>}
    </div>
  );
}

/** Every problem of a refused spec with its field. */
function Refusal({ error }: { error: Error }) {
  if (!(error instanceof ApiError) || error.errors.length === 0)
    return <InlineError error={error} />;
  return (
    <ul className="queue-problems" role="alert">
      {error.errors.map(({ pointer, detail }) => (
        <li key={pointer + detail}>
          <code>{pointer.slice(1).replaceAll("/", ".") || "spec"}</code> {detail}
        </li>
      ))}
    </ul>
  );
}
