// The audit log: who changed what, and who was refused.
import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { AuditRow } from "@/shared/api/types";
import { moment } from "@/shared/format/time";
import { MoreRows } from "@/shared/job/MoreRows";
import { Badge, type Tone } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent, EmptyState } from "@/shared/ui/Notice";
import { type Column, Table } from "@/shared/ui/table/Table";
import { AUDIT } from "@/shared/url/pages";
import { usePageParams } from "@/shared/url/params";
import { AuditFilterBar } from "./AuditFilterBar";
import { AuditRowDialog } from "./AuditRowDialog";
import { auditCommand, auditQuery, changeOf, whoOf } from "./filter";
import "./audit.css";

const COLUMNS: readonly Column[] = [
  { name: "time", label: "Time", className: "audit-time" },
  { name: "who", label: "Who", className: "audit-who" },
  { name: "did", label: "Did", className: "audit-did" },
  { name: "on", label: "On", className: "audit-on" },
  { name: "change", label: "Change", className: "audit-change" },
];

const TONES: Record<AuditRow["outcome"], Tone> = {
  changed: "accent",
  read: "neutral",
  refused: "bad",
};

const EVERY_MILLISECONDS = 5_000;

export function AuditPage() {
  const [filter, change] = usePageParams(AUDIT);
  const found = useInfiniteQuery({
    ...auditQuery(filter),
    // Further pages are old rows; a read of them all again would cost more each time.
    refetchInterval: (query) => (query.state.data?.pages.length === 1 ? EVERY_MILLISECONDS : false),
  });
  const [shown, setShown] = useState<AuditRow | null>(null);
  const rows = found.data?.pages.flatMap((page) => page.items);
  return (
    <>
      <title>Audit log · Trainyard</title>
      <header className="page-header">
        <h1>Audit log</h1>
      </header>
      <div className="stack">
        <AuditFilterBar filter={filter} onChange={change} />
        {!rows ? (
          <Absent query={found} lines={12} />
        ) : rows.length === 0 ? (
          <EmptyState title="No row matches">
            <p>A change gets its row within two seconds.</p>
          </EmptyState>
        ) : (
          <>
            <Table label="Audit log" columns={COLUMNS} className="audit cards">
              {rows.map((row) => (
                <Row key={row.seq} row={row} onShow={() => setShown(row)} />
              ))}
            </Table>
            <MoreRows query={found} />
          </>
        )}
        <CommandLine command={auditCommand(filter)} label="Lists the same rows" />
      </div>
      {shown && <AuditRowDialog row={shown} onClose={() => setShown(null)} />}
    </>
  );
}

function Row({ row, onShow }: { row: AuditRow; onShow: () => void }) {
  const { seq, at, operation, outcome, status, count, object, break_glass } = row;
  return (
    <tr>
      <td className="audit-time">
        <Button small look="quiet" aria-label={`Row ${seq}`} title={`Row ${seq}`} onClick={onShow}>
          <time dateTime={at}>{moment(at)}</time>
        </Button>
      </td>
      <td className="audit-who">
        {whoOf(row)}
        {break_glass && <Badge tone="warn">admin token</Badge>}
      </td>
      <td className="audit-did">
        <span>{operation.replaceAll("_", " ")}</span>{" "}
        <Badge tone={TONES[outcome]}>
          {outcome}
          {status && ` ${status}`}
          {count && ` × ${count}`}
        </Badge>
      </td>
      <td className="audit-on">{object}</td>
      <td className="audit-change">{changeOf(row)}</td>
    </tr>
  );
}
