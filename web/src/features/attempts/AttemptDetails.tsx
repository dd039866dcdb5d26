// One attempt: its failure, overrides and nodes.
import type { Attempt, Failure, Job } from "@/shared/api/types";
import { count, NONE, plural } from "@/shared/format/numbers";
import { autoWords, valueText } from "@/shared/format/spec";
import { moment } from "@/shared/format/time";
import { FailureFacts } from "@/shared/job/FailureFacts";
import { originWords } from "@/shared/job/reference";
import { lastStep } from "@/shared/job/steps";
import { useView } from "@/shared/job/view";
import { Badge, StateBadge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { CopyButton } from "@/shared/ui/CommandLine";
import { Fact } from "@/shared/ui/Field";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { Table } from "@/shared/ui/table/Table";

export function AttemptDetails({ job, attempt }: { job: Job; attempt: Attempt }) {
  return (
    <section className="attempt stack" aria-label={`Attempt ${attempt.number}`}>
      <header className="attempt-head row">
        <h2>Attempt {attempt.number}</h2>
        {!attempt.on_lineage && <Badge tone="warn">abandoned branch</Badge>}
        <ToLogs attempt={attempt} />
      </header>
      {attempt.failure && <FailureDetails failure={attempt.failure} />}
      <dl className="job-details">
        <Fact name="Requested by">{attempt.actor}</Fact>
        <Fact name="From">
          {attempt.parent_checkpoint_id
            ? originWords(attempt.parent_checkpoint_id, job.id)
            : "the start"}
        </Fact>
        <Fact name="Steps">
          {lastStep(attempt) === NONE ? NONE : `${count(attempt.start_step)}–${lastStep(attempt)}`}
        </Fact>
        {attempt.micro_batch_size !== null && (
          <Fact name="Micro-batch">{plural(attempt.micro_batch_size, "sequence")}</Fact>
        )}
        <Fact name="Placed">{moment(attempt.created_at)}</Fact>
        <Fact name="Training since">{attempt.started_at ? moment(attempt.started_at) : NONE}</Fact>
        <Fact name="Ended">{attempt.ended_at ? moment(attempt.ended_at) : NONE}</Fact>
        <Fact name="Slots">{attempt.device}</Fact>
        <Fact name="Auto">{autoWords(attempt.auto) || NONE}</Fact>
        <Fact name="Overrides">
          <Overrides attempt={attempt} />
        </Fact>
      </dl>
      <Nodes attempt={attempt} />
    </section>
  );
}

function ToLogs({ attempt }: { attempt: Attempt }) {
  const view = useView();
  return (
    <Button
      small
      onClick={() =>
        view.change({ tab: "logs", attempt: attempt.number, rank: null, line: null }, "push")
      }
    >
      Logs
    </Button>
  );
}

function FailureDetails({ failure }: { failure: Failure }) {
  return (
    <div className="job-notice panel job-notice-bad">
      <h3>{failure.reason.replaceAll("_", " ")}</h3>
      <p>{failure.message}</p>
      <FailureFacts failure={failure} />
      <p className="job-remedy">{failure.remedy.text}</p>
      {failure.traceback && (
        <div className="attempt-traceback panel">
          <header className="row small">
            Traceback{failure.rank !== null && ` of rank ${failure.rank}`}
            <CopyButton text={failure.traceback} />
          </header>
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: the keys that scroll need the focus */}
          <pre tabIndex={0}>{failure.traceback}</pre>
        </div>
      )}
    </div>
  );
}

function Overrides({ attempt: { changes } }: { attempt: Attempt }) {
  if (changes.length === 0) return "none";
  return (
    <ul>
      {changes.map(({ field, before, after }) => (
        <li key={field}>
          <code>{field}</code> {valueText(before)} → <strong>{valueText(after)}</strong>
        </li>
      ))}
    </ul>
  );
}

const NODE_COLUMNS = [
  { name: "node", label: "Node" },
  { name: "rank", label: "Node rank", number: true },
  { name: "slots", label: "Slot numbers" },
  { name: "state", label: "State" },
];

function Nodes({ attempt }: { attempt: Attempt }) {
  return (
    <Table label="Nodes of the attempt" columns={NODE_COLUMNS}>
      {attempt.nodes.map((node) => (
        <tr key={node.node}>
          <td>{node.node}</td>
          <td className="number">{node.node_rank}</td>
          <td>{node.slots.map((slot) => `#${slot}`).join(", ")}</td>
          <td>
            <StateBadge
              state={node.outcome ?? (node.state === "claimed" ? "starting" : node.state)}
            />{" "}
            {node.lost_at && node.state !== "ended" && <Badge tone="warn">lost, slots held</Badge>}{" "}
            {node.unreachable_since && (
              <Badge tone="warn">
                unreachable for <RelativeTime at={node.unreachable_since} />
              </Badge>
            )}
          </td>
        </tr>
      ))}
    </Table>
  );
}
