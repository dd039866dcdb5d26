// The jobs of a comparison: colour, state, layout and the last value of each series.
import { Link } from "react-router";
import type { ComparedJob } from "@/shared/api/types";
import { count, plural } from "@/shared/format/numbers";
import { formatOf } from "@/shared/format/series";
import { StateBadge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { type Curve, nonFiniteTotal, pointTotal } from "@/shared/ui/chart/curve";
import { Swatch } from "@/shared/ui/chart/Swatch";
import { cx } from "@/shared/ui/cx";
import { Skeleton } from "@/shared/ui/Skeleton";
import { type Column, Table } from "@/shared/ui/table/Table";
import { newestValue } from "./curves";

export interface Entry {
  slot: number;
  id: string;
  /** Undefined while it is loading. */
  job: ComparedJob | undefined;
}

interface LegendProps {
  entries: readonly Entry[];
  names: readonly string[];
  curves: ReadonlyMap<string, readonly Curve[]>;
  isZoomed: boolean;
  focus: number | null;
  onFocus: (slot: number | null) => void;
  onRemove: (id: string) => void;
}

export function Legend({ entries, names, isZoomed, ...rest }: LegendProps) {
  const columns: Column[] = [
    { name: "job", label: "Job", className: "legend-job" },
    { name: "state", label: "State" },
    { name: "layout", label: "Layout" },
    { name: "step", label: "Step", number: true, className: "legend-step" },
    ...names.map((name) => ({
      name,
      label: (
        <span title={`Last value ${isZoomed ? "of the visible range" : ""} of ${name}`}>
          {name}
        </span>
      ),
      number: true,
      className: "legend-value",
    })),
    { name: "remove", label: <span className="visually-hidden">Take away</span> },
  ];
  return (
    <Table label="Jobs compared, with their last values" columns={columns} className="compared">
      {entries.map((entry) => (
        <LegendRow key={entry.id} entry={entry} names={names} {...rest} />
      ))}
    </Table>
  );
}

type RowProps = Omit<LegendProps, "entries" | "isZoomed"> & { entry: Entry };

function LegendRow({ entry, names, curves, focus, onFocus, onRemove }: RowProps) {
  const { slot, id, job } = entry;
  return (
    <tr
      data-job={id}
      className={cx(focus === slot && "legend-chosen")}
      onPointerEnter={() => onFocus(slot)}
      onPointerLeave={() => onFocus(null)}
      onFocus={() => onFocus(slot)}
      onBlur={() => onFocus(null)}
    >
      <td className="legend-job">
        <span className="row">
          <Swatch slot={slot} />
          {job ? (
            <Link className="ellipsis" to={`/jobs/${id}`} title={job.name}>
              {job.name}
            </Link>
          ) : (
            <Skeleton width="14ch" />
          )}
        </span>
      </td>
      <td>{job && <StateBadge state={job.state} />}</td>
      <td className="muted">{job?.layout}</td>
      <td className="legend-step number">{job && count(job.last_step)}</td>
      {names.map((name) => (
        <td key={name} className="legend-value number">
          {job && (
            <LastValue name={name} curve={curves.get(name)?.find((each) => each.slot === slot)} />
          )}
        </td>
      ))}
      <td className="legend-remove">
        <Button
          look="quiet"
          small
          aria-label={`Remove ${job?.name ?? id}`}
          onClick={() => onRemove(id)}
        >
          ✕
        </Button>
      </td>
    </tr>
  );
}

function LastValue({ name, curve }: { name: string; curve: Curve | undefined }) {
  if (!curve) return <span className="muted">no points</span>;
  const [value, strange] = [newestValue(curve), nonFiniteTotal(curve)];
  return (
    <>
      {value === null ? <span className="tone-bad">NaN</span> : formatOf(name)(value)}
      {strange > 0 && (
        <small
          className="legend-strange tone-bad"
          title={`${plural(strange, "point")} NaN or infinite`}
        >
          {count(strange)} NaN of {count(pointTotal(curve))}
        </small>
      )}
    </>
  );
}
