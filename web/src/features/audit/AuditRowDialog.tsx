// All fields of a row of the audit log.
import type { AuditRow } from "@/shared/api/types";
import { moment } from "@/shared/format/time";
import { Button } from "@/shared/ui/Button";
import { Dialog } from "@/shared/ui/Dialog";
import { Fact } from "@/shared/ui/Field";
import { changeOf } from "./filter";

export function AuditRowDialog({ row, onClose }: { row: AuditRow; onClose: () => void }) {
  const facts: readonly (readonly [string, string | number | null | undefined])[] = [
    ["Time", moment(row.at)],
    ["Operation", row.operation],
    ["Outcome", row.status ? `${row.outcome} (${row.status})` : row.outcome],
    ["Attempts", row.count],
    ["User", row.user],
    ["Token", row.token],
    ["Token id", row.token_id],
    ["Session id", row.session_id],
    ["Break-glass", row.break_glass ? "the admin token" : null],
    ["Address", row.address],
    ["Object", row.object],
    ["Project", row.project],
    ["Change", changeOf(row) || null],
    ["Request id", row.request_id],
    ["Digest", row.digest],
    ["Digest before", row.previous],
  ];
  return (
    <Dialog
      wide
      title={`Row ${row.seq}`}
      onClose={onClose}
      footer={<Button onClick={onClose}>Close</Button>}
    >
      <dl className="facts-column audit-facts">
        {facts
          .filter(([, value]) => value !== null && value !== undefined)
          .map(([name, value]) => (
            <Fact key={name} name={name}>
              {value}
            </Fact>
          ))}
      </dl>
    </Dialog>
  );
}
