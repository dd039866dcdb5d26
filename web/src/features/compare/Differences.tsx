// Values of configuration and summary that differ between the compared jobs.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { FactRow } from "@/shared/api/types";
import { count, NONE, plural } from "@/shared/format/numbers";
import { factText } from "@/shared/format/spec";
import { Button } from "@/shared/ui/Button";
import { Swatch } from "@/shared/ui/chart/Swatch";
import { InlineError } from "@/shared/ui/Notice";
import { type Column, Table } from "@/shared/ui/table/Table";
import { factsQuery } from "./api";
import type { Entry } from "./Legend";

/** Rows of a table before the rest is opened. */
const FIRST = 12;

export function Differences({ entries }: { entries: readonly Entry[] }) {
  const facts = useQuery(factsQuery(entries.map(({ id }) => id)));
  if (facts.isError) return <InlineError error={facts.error} />;
  if (!facts.data || entries.length < 2) return null;
  const { config, summary, same, jobs } = facts.data;
  if (config.length + summary.length + same === 0) return null;
  const places = entries.flatMap((entry) => {
    const place = jobs.findIndex(({ id }) => id === entry.id);
    return place < 0 ? [] : [{ entry, place }];
  });
  return (
    <section className="stack differences" aria-label="What differs">
      <h2>
        What differs <span className="muted small">{plural(same, "value")} in common</span>
      </h2>
      {config.length + summary.length === 0 && (
        <p className="muted">Configuration and summary of these jobs are the same.</p>
      )}
      <Rows title="Configuration" rows={config} places={places} />
      <Rows title="Summary" rows={summary} places={places} />
    </section>
  );
}

interface RowsProps {
  title: string;
  rows: readonly FactRow[];
  places: readonly { entry: Entry; place: number }[];
}

function Rows({ title, rows, places }: RowsProps) {
  const [isAll, setIsAll] = useState(false);
  if (rows.length === 0) return null;
  const columns: Column[] = [
    { name: "name", label: title, className: "differences-name" },
    ...places.map(({ entry: { id, slot, job } }) => ({
      name: id,
      label: (
        <span className="row">
          <Swatch slot={slot} />
          <span className="ellipsis" title={job?.name}>
            {job?.name ?? id}
          </span>
        </span>
      ),
      className: "differences-job",
    })),
  ];
  return (
    <>
      <Table label={`${title}: what differs`} columns={columns} className="differences-table">
        {(isAll ? rows : rows.slice(0, FIRST)).map(({ name, values }) => (
          <tr key={name}>
            <td className="differences-name">{name}</td>
            {places.map(({ entry, place }) => (
              <td key={entry.id} className="mono">
                <Value value={values[place] ?? null} />
              </td>
            ))}
          </tr>
        ))}
      </Table>
      {rows.length > FIRST && (
        <p>
          <Button small aria-expanded={isAll} onClick={() => setIsAll(!isAll)}>
            {isAll ? "Fewer" : `All ${count(rows.length)} values`}
          </Button>
        </p>
      )}
    </>
  );
}

function Value({ value }: { value: FactRow["values"][number] }) {
  return value === null ? <span className="muted">{NONE}</span> : factText(value);
}
