// The browser sessions of the caller, which end one by one or all others at once.
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "@/shared/api/client";
import { ApiError } from "@/shared/api/errors";
import { keys, sessionsQuery } from "@/shared/api/queries";
import type { BrowserSession } from "@/shared/api/types";
import { NONE, plural } from "@/shared/format/numbers";
import { curl } from "@/shared/format/shell";
import { Badge } from "@/shared/ui/Badge";
import { Button } from "@/shared/ui/Button";
import { ActionDialog } from "@/shared/ui/Dialog";
import { Absent } from "@/shared/ui/Notice";
import { RelativeTime } from "@/shared/ui/RelativeTime";
import { type Column, Table } from "@/shared/ui/table/Table";
import { browserWords } from "./browserWords";
import { Part } from "./Part";

const COLUMNS: readonly Column[] = [
  { name: "browser", label: "Browser" },
  { name: "address", label: "Address" },
  { name: "begin", label: "Logged in", number: true },
  { name: "used", label: "Last used", number: true },
  { name: "action", label: <span className="visually-hidden">Action</span> },
];

export function Sessions() {
  const sessions = useQuery(sessionsQuery);
  const [ended, setEnded] = useState<BrowserSession[] | null>(null);
  const others = sessions.data?.filter((session) => !session.is_current) ?? [];
  return (
    <Part
      title="Browser sessions"
      actions={
        others.length > 0 && <Button onClick={() => setEnded(others)}>End all others</Button>
      }
    >
      {sessions.data ? (
        <Table label="Browser sessions" columns={COLUMNS} className="sessions">
          {sessions.data.map((session) => (
            <SessionRow key={session.id} session={session} onEnd={() => setEnded([session])} />
          ))}
        </Table>
      ) : (
        <Absent query={sessions} lines={2} />
      )}
      {ended && <EndDialog sessions={ended} onClose={() => setEnded(null)} />}
    </Part>
  );
}

interface SessionRowProps {
  session: BrowserSession;
  onEnd: () => void;
}

function SessionRow({ session, onEnd }: SessionRowProps) {
  const words = browserWords(session.browser);
  return (
    <tr>
      <td className="session-browser" title={session.browser ?? undefined}>
        {words}
      </td>
      <td className="session-address mono">{session.address ?? NONE}</td>
      <td className="session-begin number">
        <RelativeTime at={session.created_at} isSentence />
      </td>
      <td className="session-used number">
        {session.last_used_at ? <RelativeTime at={session.last_used_at} isSentence /> : "never"}
      </td>
      <td className="session-action number">
        {session.is_current ? (
          <Badge tone="accent">this browser</Badge>
        ) : (
          <Button
            small
            look="quiet"
            aria-label={`End ${words} from ${session.address ?? "an unknown address"}`}
            onClick={onEnd}
          >
            End
          </Button>
        )}
      </td>
    </tr>
  );
}

interface EndDialogProps {
  sessions: readonly BrowserSession[];
  onClose: () => void;
}

function EndDialog({ sessions, onClose }: EndDialogProps) {
  const client = useQueryClient();
  const end = useMutation({
    mutationFn: async () => {
      for (const { id } of sessions) await endSession(id);
    },
    onSuccess: onClose,
    onSettled: () => client.invalidateQueries({ queryKey: keys.sessions }),
  });
  const [one, ...more] = sessions;
  const title =
    one && more.length === 0
      ? `End ${browserWords(one.browser)}?`
      : `End ${plural(sessions.length, "session")}?`;
  return (
    <ActionDialog
      title={title}
      label="End"
      look="danger"
      action={end}
      command={endCommand(sessions.map(({ id }) => id))}
      onClose={onClose}
    >
      {more.length > 0 ? (
        <p>
          Every browser except this one is logged out, and commands that it runs in jobs end. Tokens
          stay valid.
        </p>
      ) : (
        <p>The browser is logged out, and commands that it runs in jobs end. Tokens stay valid.</p>
      )}
    </ActionDialog>
  );
}

/** Return the command that ends sessions: one, or several in a loop of the shell. */
function endCommand(ids: readonly string[]): string {
  const [first] = ids;
  if (ids.length === 1) return curl("DELETE", `/auth/sessions/${first}`);
  return `for id in ${ids.join(" ")}; do\n  ${curl("DELETE", "/auth/sessions/$id")}\ndone`;
}

/** End a session; one that has ended meanwhile is no error. */
async function endSession(id: string): Promise<void> {
  try {
    await ask(
      api.DELETE("/api/v1/auth/sessions/{session_id}", { params: { path: { session_id: id } } }),
    );
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
  }
}
