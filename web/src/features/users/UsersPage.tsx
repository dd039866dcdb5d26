// The users of the server: their roles and states; invites, changes and disables them.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";
import { usersQuery } from "@/shared/api/queries";
import type { User } from "@/shared/api/types";
import { useSession } from "@/shared/api/useMay";
import { plural } from "@/shared/format/numbers";
import { Badge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { Absent } from "@/shared/ui/Notice";
import { RelativeTime, useNow } from "@/shared/ui/RelativeTime";
import { type Column, Table } from "@/shared/ui/table/Table";
import { ownerPath } from "@/shared/url/pages";
import { ChangeDialog } from "./ChangeDialog";
import { InviteDialog } from "./InviteDialog";
import { LinkDialog } from "./LinkDialog";
import { StateDialog } from "./StateDialog";
import { stateOf } from "./state";
import { UnlinkDialog } from "./UnlinkDialog";
import "./users.css";

const COLUMNS: readonly Column[] = [
  { name: "name", label: "Name" },
  { name: "role", label: "Role" },
  { name: "state", label: "State" },
  { name: "used", label: "Last used", number: true },
  { name: "action", label: <span className="visually-hidden">Actions</span> },
];

type Verb = "change" | "link" | "unlink" | "state";
type Opened = { dialog: "invite" } | { dialog: Verb; user: User };

export function UsersPage() {
  const users = useQuery({ ...usersQuery, staleTime: 0 });
  const [opened, setOpened] = useState<Opened | null>(null);
  return (
    <>
      <title>Users · Trainyard</title>
      <header className="page-header">
        <h1>Users</h1>
        {users.data && <span className="muted">{summary(users.data)}</span>}
        {users.data && (
          <Button look="primary" onClick={() => setOpened({ dialog: "invite" })}>
            Invite a user
          </Button>
        )}
      </header>
      {users.data ? (
        <div className="stack">
          <Table label="Users" columns={COLUMNS} className="users">
            {users.data.map((user) => (
              <UserRow key={user.id} user={user} onOpen={(dialog) => setOpened({ dialog, user })} />
            ))}
          </Table>
          <CommandLine command="trainyard users" label="Lists the same users" />
        </div>
      ) : (
        <Absent query={users} />
      )}
      {opened && <OpenedDialog opened={opened} onClose={() => setOpened(null)} />}
    </>
  );
}

function summary(users: readonly User[]): string {
  const present = users.filter(({ has_ended }) => !has_ended);
  const disabled = present.filter(({ state }) => state === "disabled").length;
  const all = plural(present.length, "user");
  return disabled === 0 ? all : `${all}, ${disabled} disabled`;
}

function OpenedDialog({ opened, onClose }: { opened: Opened; onClose: () => void }) {
  switch (opened.dialog) {
    case "invite":
      return <InviteDialog onClose={onClose} />;
    case "change":
      return <ChangeDialog user={opened.user} onClose={onClose} />;
    case "link":
      return <LinkDialog user={opened.user} onClose={onClose} />;
    case "unlink":
      return <UnlinkDialog user={opened.user} onClose={onClose} />;
    case "state":
      return <StateDialog user={opened.user} onClose={onClose} />;
  }
}

interface UserRowProps {
  user: User;
  onOpen: (verb: Verb) => void;
}

function UserRow({ user, onOpen }: UserRowProps) {
  const { name, email, kind, role, unix_account } = user;
  const { words, tone, note } = stateOf(user, useNow());
  return (
    <tr>
      <td className="user-name">
        <Link to={ownerPath(name)} title={`Jobs of ${name}`}>
          {name}
        </Link>
        {email && (
          <div className="small muted ellipsis" title={email}>
            {email}
          </div>
        )}
        {unix_account && <div className="small muted">Unix account {unix_account}</div>}
      </td>
      <td className="user-role">{kind === "person" && role}</td>
      <td className="user-state">
        <Badge tone={tone}>{words}</Badge>
        {note && <div className="small muted">{note}</div>}
        {user.disabled_at && (
          <div className="small muted">
            <RelativeTime at={user.disabled_at} isSentence />
          </div>
        )}
      </td>
      <td className="user-used number">
        {user.last_used_at ? <RelativeTime at={user.last_used_at} isSentence /> : "never"}
      </td>
      <td className="user-actions">{!user.is_built_in && <Verbs user={user} onOpen={onOpen} />}</td>
    </tr>
  );
}

function Verbs({ user, onOpen }: UserRowProps) {
  const { name, kind, state, has_ended, has_password, issuer } = user;
  // A service account has no password, and no role in the cluster.
  const isPerson = kind === "person";
  const isSelf = useSession()?.user?.id === user.id;
  const isActive = state === "active";
  return (
    <>
      {isPerson && isActive && (
        <Button
          small
          aria-label={has_password ? `Reset password of ${name}` : `New link for ${name}`}
          onClick={() => onOpen("link")}
        >
          {has_password ? "Reset password" : "New link"}
        </Button>
      )}
      {!has_ended && (
        <Button small aria-label={`Change ${name}`} onClick={() => onOpen("change")}>
          Change
        </Button>
      )}
      {issuer !== null && (
        <Button small aria-label={`Unlink ${name}`} onClick={() => onOpen("unlink")}>
          Unlink
        </Button>
      )}
      {!isSelf && !has_ended && (
        <Button
          small
          aria-label={isActive ? `Disable ${name}` : `Enable ${name}`}
          onClick={() => onOpen("state")}
        >
          {isActive ? "Disable" : "Enable"}
        </Button>
      )}
    </>
  );
}
