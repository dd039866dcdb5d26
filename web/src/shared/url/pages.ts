// The search parameters of every page; links between pages are built from them too.

import { EVERYONE, legalSearch, MAX_COMPARED } from "@/shared/api/queries";
import { auditOutcomeValues, jobStateValues, nextActionAimAnyOf0Values } from "@/shared/api/schema";
import type { AuditRow, NextAction } from "@/shared/api/types";
import type { Axis } from "@/shared/ui/chart/axis";
import { MAX_SMOOTHING } from "@/shared/ui/chart/values/smoothed";
import {
  changed,
  decimalOf,
  flag,
  list,
  oneOf,
  param,
  pathTo,
  stretch,
  text,
  type ValuesOf,
  whole,
  wholeOf,
} from "./params";

export const LOGIN = { code: text("code"), next: text("next"), error: text("error") };

/** The profile: why the link to the issuer failed. */
export const PROFILE = { error: text("error") };

const TAG = /^[A-Za-z0-9][A-Za-z0-9._:/-]*$/;
const MAX_TAGS = 8;
/** A person, or a service account with its project. */
const USER = /^[a-z0-9][a-z0-9._-]{0,63}(@[A-Za-z0-9][A-Za-z0-9._-]*)?$/;
const PROJECT = /^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$/;

/** The filter of the jobs table; values that the server would refuse are omitted. */
export const JOBS = {
  states: list("state", (found) => jobStateValues.filter((state) => found.includes(state))),
  tags: list("tag", (found) => unique(found.filter((tag) => TAG.test(tag))).slice(0, MAX_TAGS)),
  project: param<string>(
    "project",
    (found) => (found !== null && PROJECT.test(found) ? found : ""),
    (value) => value || null,
  ),
  search: param<string>(
    "q",
    (found) => legalSearch(found ?? ""),
    (value) => value || null,
  ),
  owner: param<string>(
    "owner",
    (found) => (found !== null && (USER.test(found) || found === EVERYONE) ? found : ""),
    (value) => value || null,
  ),
};

const DAY = /^\d{4}-\d{2}-\d{2}$/;

/** A day of the calendar; empty without one. */
const day = (name: string) =>
  param<string>(
    name,
    (found) => (found !== null && DAY.test(found) && isDay(found) ? found : ""),
    (value) => value || null,
  );

/** A text that the server would accept; empty without one. */
const matching = (name: string, pattern: RegExp) =>
  param<string>(
    name,
    (found) => (found !== null && pattern.test(found) ? found : ""),
    (value) => value || null,
  );

function isDay(text: string): boolean {
  const found = new Date(`${text}T00:00:00Z`);
  return !Number.isNaN(found.valueOf()) && found.toISOString().startsWith(text);
}

/** The filter of the audit log; values that the server would refuse are omitted. */
export const AUDIT = {
  user: matching("user", USER),
  project: matching("project", PROJECT),
  object: matching("object", /^[!-~]{1,300}$/),
  operation: matching("operation", /^[a-z_]{1,80}$/),
  outcome: param<AuditRow["outcome"] | null>(
    "outcome",
    (found) => auditOutcomeValues.find((outcome) => outcome === found) ?? null,
    (value) => value,
  ),
  from: day("from"),
  to: day("to"),
};

/** The list of tokens: whether it has those of all users and machines. */
export const TOKENS = { isAll: flag("all") };

/** The selected jobs of the table, separate from its filter. */
export const PICKED = {
  picked: list("pick", (found) => unique(found.filter((id) => ID.test(id))).slice(0, MAX_COMPARED)),
};

/** The filter of the nodes. */
export const NODES = { search: text("q"), isTroubled: flag("problems") };

/** The sources: `request` is the id of the node request to show. */
export const SOURCES = { request: text("request") };

const SPANS = [1, 6, 24, 336];

/** The hours up to now that the charts of a node show. */
export const NODE = {
  hours: param<number>(
    "hours",
    (found) => SPANS.find((hours) => String(hours) === found) ?? 1,
    (hours) => (hours === 1 ? null : String(hours)),
  ),
};

/** The form: `from` is the id of the job to start from, `find` a field to show. */
export const SUBMIT = {
  from: text("from"),
  find: text("find"),
  view: param<"form" | "toml">(
    "view",
    // The text was JSON in earlier versions: their links open the text.
    (found) => (found === "toml" || found === "json" ? "toml" : "form"),
    (view) => (view === "form" ? null : view),
  ),
};

/** The queue: whether the forecast for a spec is open, and the id of the job with the initial spec. */
export const QUEUE = { isForecast: flag("what-if"), from: text("from") };

/** Days that the goodput page offers. */
export const STRETCHES = [7, 30, 90] as const;
const USUAL_DAYS = 30;

export const GOODPUT = {
  days: param<number>(
    "days",
    (found) => STRETCHES.find((days) => String(days) === found) ?? USUAL_DAYS,
    (days) => (days === USUAL_DAYS ? null : String(days)),
  ),
};

const TABS = [
  "charts",
  "facts",
  "logs",
  "artifacts",
  "attempts",
  "ranks",
  "goodput",
  "checkpoints",
  "events",
  "provenance",
  "spec",
] as const;

/** The aim of a resume after a failure; null for the layout as before. */
export type Aim = NextAction["aim"];

/** Weight of the past in the moving average, 0 to `MAX_SMOOTHING`; 0 for no smoothing. */
const SMOOTHING = param<number>(
  "smooth",
  (found) => Math.min(decimalOf(found) ?? 0, MAX_SMOOTHING),
  (weight) => (weight > 0 ? String(weight) : null),
);

export const JOB = {
  tab: oneOf("tab", TABS),
  attempt: whole("attempt"),
  rank: whole("rank"),
  /** A line of the log, from 1; `error` is the first error, until its number is known. */
  line: param<number | "error" | null>(
    "line",
    (found) => (found === "error" ? found : wholeOf(found)),
    (value) => (value === null ? null : String(value)),
  ),
  search: text("q"),
  range: stretch(wholeOf),
  isLog: flag("y", "log"),
  isFull: flag("full"),
  smoothing: SMOOTHING,
  hasMoreCharts: flag("more"),
  hasAllFields: flag("fields", "all"),
  /** The verb of the open dialog; the job's state decides whether it is shown. */
  dialog: text("do"),
  checkpoint: text("checkpoint"),
  /** The checkpoint of the open fork dialog, and its initial setting. */
  fork: text("fork"),
  setting: text("set"),
  aim: param<Aim>(
    "aim",
    (found) => nextActionAimAnyOf0Values.find((aim) => aim === found) ?? null,
    (value) => value,
  ),
};

export type JobView = ValuesOf<typeof JOB>;

export const MAX_NAMES = 12;

const ID = /^[0-7][0-9a-hjkmnp-tv-z]{25}$/;
const NAME = /^[^,\s\p{C}][^,\p{C}]*$/u;

/** Ids by place: a removed job leaves its place empty, so that the others keep their colours. */
export type Slots = readonly (string | null)[];

export const COMPARE = {
  slots: param<Slots>(
    "jobs",
    (found) => slotsOf(found ?? ""),
    (slots) =>
      trimmed(slots)
        .map((id) => id ?? "")
        .join(",") || null,
  ),
  /** Series in the order of their charts; null for the defaults. */
  names: param<readonly string[] | null>(
    "names",
    (found) =>
      found === null
        ? null
        : unique(found.split(",").filter((name) => NAME.test(name))).slice(0, MAX_NAMES),
    (names) => names?.join(",") ?? null,
  ),
  axis: oneOf<Axis>("x", ["step", "tokens", "seconds"]),
  isLog: flag("y", "log"),
  /** Whether the axes include outliers. */
  isFull: flag("full"),
  smoothing: SMOOTHING,
  /** Visible stretch of the axis; null for all of it. */
  range: stretch(decimalOf),
};

export type CompareView = ValuesOf<typeof COMPARE>;

/** Return the places without the empty ones at their end. */
export function trimmed(slots: Slots): Slots {
  return slots.slice(0, slots.findLastIndex((id) => id !== null) + 1);
}

function slotsOf(found: string): Slots {
  const ids = found.split(",").map((id) => (ID.test(id) ? id : null));
  const once = trimmed(ids.map((id, at) => (ids.indexOf(id) === at ? id : null)));
  // With more places than colours, the empty ones are removed.
  return once.length > MAX_COMPARED ? once.filter((id) => id !== null) : once;
}

function unique(names: readonly string[]): string[] {
  return [...new Set(names)];
}

/** Return the path of a comparison of some jobs. */
export function comparePath(slots: Slots): string {
  return pathTo("/compare", COMPARE, { slots });
}

/** Return the path of a project's page. */
export function projectPath(project: string): string {
  return `/projects/${encodeURIComponent(project)}`;
}

/** Return the path of the jobs of a project. */
export function projectJobsPath(project: string): string {
  return pathTo("/jobs", JOBS, { project });
}

/** Return the path of the jobs of a user. */
export function ownerPath(owner: string): string {
  return pathTo("/jobs", JOBS, { owner });
}

/** Return the path of a node request. */
export function nodeRequestPath(request: string): string {
  return pathTo("/sources", SOURCES, { request });
}

/** Return the path of the form. */
export function submitPath(values: Partial<ValuesOf<typeof SUBMIT>>): string {
  return pathTo("/jobs/new", SUBMIT, values);
}

/** Return the path of the login; a path within it is encoded whole. */
export function loginPath(values: Partial<ValuesOf<typeof LOGIN>>): string {
  return `/login?${changed(LOGIN, new URLSearchParams(), values)}`;
}
