// The persons with a role in a project, with their use; the role of everyone and the limits of each.
import { useState } from "react";
import type { Member, Project } from "@/shared/api/types";
import { useBarriers, useSession } from "@/shared/api/useMay";
import { command } from "@/shared/format/shell";
import { Badge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Table } from "@/shared/ui/table/Table";
import { EveryoneDialog } from "./EveryoneDialog";
import { LimitsDialog } from "./LimitsDialog";
import { limitsOf, limitWords } from "./limits";
import { COLUMNS, MemberCells } from "./MemberCells";
import { MemberDialog } from "./MemberDialog";
import { RemoveDialog } from "./RemoveDialog";
import { RoleBadge } from "./RoleBadge";

type Opened =
  | { dialog: "add" }
  | { dialog: "everyone" | "limits" }
  | { dialog: "change" | "remove"; member: Member };

interface MembersProps {
  project: Project;
  /** Members, service accounts included. */
  members: readonly Member[];
}

export function Members({ project, members }: MembersProps) {
  const { name } = project;
  const [opened, setOpened] = useState<Opened | null>(null);
  const barrier = useBarriers()("members:write", name);
  const session = useSession();
  const limits = limitWords(limitsOf(project));
  const persons = members.filter(({ kind }) => kind === "person");
  return (
    <section className="members-part" aria-labelledby="members">
      <div className="members-head row">
        <h2 id="members">Members</h2>
        <Button barrier={barrier} onClick={() => setOpened({ dialog: "add" })}>
          Add a member
        </Button>
      </div>
      <Table label="Members" columns={COLUMNS} className="members cards">
        <tr>
          <td className="member-name">
            Everyone
            <div className="small muted">each active person of the server</div>
          </td>
          <td className="member-role">
            <RoleBadge role={project.everyone} />
          </td>
          <td className="member-use">
            <span className="muted">{limits ? `at most ${limits} each` : "no limits"}</span>
          </td>
          <td className="member-since" />
          <td className="member-actions">
            {!barrier && (
              <>
                <Button
                  small
                  aria-label="Change the role of everyone"
                  onClick={() => setOpened({ dialog: "everyone" })}
                >
                  Change
                </Button>
                <Button
                  small
                  aria-label="Limits of each user"
                  onClick={() => setOpened({ dialog: "limits" })}
                >
                  Limits
                </Button>
              </>
            )}
          </td>
        </tr>
        {persons.map((member) => (
          <MemberRow
            key={member.user}
            member={member}
            isSelf={member.user === session?.user?.name}
            mayWrite={!barrier}
            onOpen={(dialog) => setOpened({ dialog, member })}
          />
        ))}
      </Table>
      <p className="small muted">
        {barrier
          ? "A maintainer of the project changes the members."
          : "Admins of the server are maintainers of every project."}
      </p>
      <CommandLine command={command("members", "--project", name)} label="Lists the same members" />
      {opened && (
        <OpenedDialog
          opened={opened}
          project={project}
          members={members}
          onClose={() => setOpened(null)}
        />
      )}
    </section>
  );
}

interface OpenedProps extends MembersProps {
  opened: Opened;
  onClose: () => void;
}

function OpenedDialog({ opened, project, members, onClose }: OpenedProps) {
  const change = { project, members, onClose };
  switch (opened.dialog) {
    case "add":
      return <MemberDialog member={null} {...change} />;
    case "change":
      return <MemberDialog member={opened.member} {...change} />;
    case "remove":
      return <RemoveDialog project={project} user={opened.member.user} onClose={onClose} />;
    case "limits":
      return <LimitsDialog project={project} onClose={onClose} />;
    case "everyone":
      return <EveryoneDialog project={project} onClose={onClose} />;
  }
}

interface MemberRowProps {
  member: Member;
  isSelf: boolean;
  mayWrite: boolean;
  onOpen: (dialog: "change" | "remove") => void;
}

function MemberRow({ member, isSelf, mayWrite, onOpen }: MemberRowProps) {
  const { user } = member;
  return (
    <tr>
      <MemberCells
        member={member}
        note={isSelf && <Badge tone="accent">you</Badge>}
        actions={
          mayWrite && (
            <>
              <Button
                small
                aria-label={`Change role and limits of ${user}`}
                onClick={() => onOpen("change")}
              >
                Change
              </Button>
              <Button
                small
                aria-label={isSelf ? "Leave the project" : `Remove ${user}`}
                onClick={() => onOpen("remove")}
              >
                {isSelf ? "Leave" : "Remove"}
              </Button>
            </>
          )
        }
      />
    </tr>
  );
}
