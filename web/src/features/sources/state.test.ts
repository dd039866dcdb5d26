import { expect, test } from "vitest";
import type { NodeRequest, Source } from "@/shared/api/types";
import { isUnknown, standingOf, timeOf, verbsOf } from "./state";

const ONLINE = {
  online: true,
  paused: false,
  paused_by: null,
  pause_reason: null,
  error: null,
  needs_login: null,
} as unknown as Source;

test("the state of a source is its most urgent problem", () => {
  expect(standingOf(ONLINE)).toEqual({ word: "online", tone: "ok", why: null });
  const failed = { ...ONLINE, error: "invalid account" };
  expect(standingOf(failed).word).toBe("error");
  const paused = { ...failed, paused: true, paused_by: "ada", pause_reason: "maintenance" };
  expect(standingOf(paused).why).toBe("by ada: maintenance");
  expect(standingOf({ ...paused, pause_reason: null }).why).toBe("by ada");
  expect(standingOf({ ...paused, online: false }).why).toBe("invalid account");
  expect(standingOf({ ...ONLINE, online: false }).why).toBe("its provisioner does not answer");
  const login = { reason: "Permission denied", command: "ssh -MNf gate" };
  expect(standingOf({ ...paused, online: false, needs_login: login }).word).toBe("needs login");
});

test("an open request that the engine no longer lists is unknown", () => {
  const request = { state: "running", ref: "4711", engine_state: "unknown" } as NodeRequest;
  expect(isUnknown(request)).toBe(true);
  expect(isUnknown({ ...request, ref: null })).toBe(false);
  expect(isUnknown({ ...request, state: "ended" })).toBe(false);
  expect(isUnknown({ ...request, engine_state: "running" })).toBe(false);
});

test("the actions on a request depend on its state", () => {
  const request = { state: "pending", ref: "4711", engine_state: "pending" } as NodeRequest;
  expect(verbsOf(request)).toEqual(["explain", "cancel"]);
  const forgotten = { ...request, state: "running", engine_state: "unknown" } as NodeRequest;
  expect(verbsOf(forgotten)).toEqual(["cancel", "end"]);
  expect(verbsOf({ ...forgotten, state: "leaving" })).toEqual(["end"]);
  expect(verbsOf({ ...request, state: "ended" })).toEqual([]);
});

test("the time of a request depends on its state", () => {
  const request = {
    created_at: "a",
    starts_at: "b",
    ends_at: "c",
    ended_at: null,
  } as unknown as NodeRequest;
  expect(timeOf({ ...request, state: "wanted" })?.at).toBe("a");
  expect(timeOf({ ...request, state: "pending" })?.at).toBe("b");
  expect(timeOf({ ...request, state: "leaving" })?.at).toBe("c");
  expect(timeOf({ ...request, state: "ended", ended_at: "d" })?.at).toBe("d");
  expect(timeOf({ ...request, state: "running", ends_at: null })).toBeNull();
});
