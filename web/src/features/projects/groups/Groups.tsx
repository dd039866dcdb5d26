// The groups of the issuer that have a role in a project; shown with single sign-on alone.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useIssuer } from "@/shared/accounts/issuer";
import { groupsQuery } from "@/shared/api/queries";
import type { IssuerGroup } from "@/shared/api/types";
import { useBarriers } from "@/shared/api/useMay";
import { command } from "@/shared/format/shell";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent } from "@/shared/ui/Notice";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { type Column, Table } from "@/shared/ui/table/Table";
import { RoleBadge } from "../members/RoleBadge";
import { GroupDialog } from "./GroupDialog";

const COLUMNS: readonly Column[] = [
  { name: "name", label: "Group" },
  { name: "role", label: "Role", className: "member-role" },
  { name: "since", label: "Since", number: true, className: "member-since" },
  {
    name: "action",
    label: <span className="visually-hidden">Actions</span>,
    className: "member-actions",
  },
];

export function Groups({ project }: { project: string }) {
  const issuer = useIssuer();
  const groups = useQuery({ ...groupsQuery(project), enabled: issuer !== null });
  // The group to change; null for a new one, undefined for no dialog.
  const [opened, setOpened] = useState<IssuerGroup | null | undefined>(undefined);
  const barrier = useBarriers()("members:write", project);
  if (issuer === null) return null;
  return (
    <section className="members-part" aria-labelledby="groups">
      <div className="members-head row">
        <h2 id="groups">Groups of {issuer}</h2>
        <Button barrier={barrier} onClick={() => setOpened(null)}>
          Add a group
        </Button>
      </div>
      {!groups.data ? (
        <Absent query={groups} lines={3} />
      ) : groups.data.length === 0 ? (
        <p className="panel members-none muted">
          None. The persons of a group have its role, while the issuer confirms the group.
        </p>
      ) : (
        <Table label="Groups" columns={COLUMNS} className="members groups cards">
          {groups.data.map((group) => (
            <tr key={group.group}>
              <td className="member-name">{group.group}</td>
              <td className="member-role">
                <RoleBadge role={group.role} />
              </td>
              <td className="member-since number">
                <RelativeTime at={group.since} isSentence />
              </td>
              <td className="member-actions">
                {!barrier && (
                  <Button
                    small
                    aria-label={`Change the role of ${group.group}`}
                    onClick={() => setOpened(group)}
                  >
                    Change
                  </Button>
                )}
              </td>
            </tr>
          ))}
        </Table>
      )}
      <CommandLine
        command={command("groups", "--project", project)}
        label="Lists the same groups"
      />
      {opened !== undefined && (
        <GroupDialog project={project} group={opened} onClose={() => setOpened(undefined)} />
      )}
    </section>
  );
}
