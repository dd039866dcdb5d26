// The state of a source and of a node request.
import type { NodeRequest, Source } from "@/shared/api/types";
import type { Tone } from "@/shared/ui/Badge";

export interface Standing {
  word: string;
  tone: Tone;
  /** The reason; null without one. */
  why: string | null;
}

const SILENT = "its provisioner does not answer";

/** Return the state of a source: its most urgent problem. */
export function standingOf(source: Source): Standing {
  const { needs_login: login, error } = source;
  if (login) return { word: "needs login", tone: "bad", why: login.reason };
  if (!source.online) return { word: "offline", tone: "warn", why: error ?? SILENT };
  if (source.paused) return { word: "paused", tone: "warn", why: pauseOf(source) };
  if (error) return { word: "error", tone: "bad", why: error };
  return { word: "online", tone: "ok", why: null };
}

function pauseOf({ paused_by: by, pause_reason: reason }: Source): string | null {
  const words = [by && `by ${by}`, reason].filter(Boolean);
  return words.length > 0 ? words.join(": ") : null;
}

const TONES: Record<NodeRequest["state"], Tone> = {
  wanted: "neutral",
  pending: "accent",
  running: "ok",
  leaving: "warn",
  ended: "neutral",
};

export function toneOf(request: NodeRequest): Tone {
  return TONES[request.state];
}

export type Verb = "explain" | "cancel" | "end";

/** Return the actions on an open request; only one that the engine does not list can be ended here. */
export function verbsOf(request: NodeRequest): Verb[] {
  if (request.state === "ended") return [];
  const isWaiting = request.state === "pending" || request.state === "wanted";
  return [
    ...(isWaiting ? (["explain"] as const) : []),
    ...(request.state !== "leaving" ? (["cancel"] as const) : []),
    ...(isUnknown(request) ? (["end"] as const) : []),
  ];
}

export interface RequestTime {
  word: string;
  at: string;
  isPast: boolean;
}

/** Return the time to show in a state: the expected start, the end of the allocation, or the end. */
export function timeOf({ state, ...request }: NodeRequest): RequestTime | null {
  if (state === "ended") return timeAt("ended", request.ended_at, true);
  if (state === "wanted") return timeAt("since", request.created_at, true);
  if (state === "pending") return timeAt("expected to start", request.starts_at, false);
  return timeAt("ends", request.ends_at, false);
}

function timeAt(word: string, at: string | null, isPast: boolean): RequestTime | null {
  return at === null ? null : { word, at, isPast };
}

/** Whether the engine no longer describes the job of an open request, which proves nothing. */
export function isUnknown(request: NodeRequest): boolean {
  return request.state !== "ended" && request.ref !== null && request.engine_state === "unknown";
}
