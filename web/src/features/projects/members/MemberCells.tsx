// The columns of a member or a service account in a project, and the cells of a row.
import type { ReactNode } from "react";
import type { Member } from "@/shared/api/types";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import type { Column } from "@/shared/ui/table/Table";
import { hasOwnLimit, useWords } from "./limits";
import { RoleBadge } from "./RoleBadge";

export const COLUMNS: readonly Column[] = [
  { name: "name", label: "Name" },
  { name: "role", label: "Role", className: "member-role" },
  { name: "use", label: "Use", className: "member-use" },
  { name: "since", label: "Since", number: true, className: "member-since" },
  {
    name: "action",
    label: <span className="visually-hidden">Actions</span>,
    className: "member-actions",
  },
];

interface MemberCellsProps {
  member: Member;
  /** Follows the name. */
  note?: ReactNode;
  actions: ReactNode;
}

export function MemberCells({ member, note, actions }: MemberCellsProps) {
  return (
    <>
      <td className="member-name">
        {member.user} {note}
      </td>
      <td className="member-role">
        <RoleBadge role={member.role} />
      </td>
      <td className="member-use">
        {useWords(member)}
        {hasOwnLimit(member) && <div className="small muted">own limit</div>}
      </td>
      <td className="member-since number">
        <RelativeTime at={member.since} isSentence />
      </td>
      <td className="member-actions">{actions}</td>
    </>
  );
}
