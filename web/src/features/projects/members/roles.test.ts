import { describe, expect, it } from "vitest";
import type { Member, ProjectRole, Session } from "@/shared/api/types";
import {
  accountCommand,
  everyoneCommand,
  groupCommand,
  lossOf,
  ownLoss,
  ownRoleWords,
  removeCommand,
  setCommand,
} from "./roles";

const ada = (role: "user" | "admin" = "user") => ({ user: { name: "ada", role } }) as Session;
const member = (user: string, role: ProjectRole) => ({ user, role }) as Member;

describe("the caller's role", () => {
  it.each([
    ["member", null, "member", "Your role: member, by membership"],
    ["member", "member", null, "Your role: member, as everyone"],
    ["member", "member", "viewer", "Your role: member, as everyone"],
    ["member", "viewer", "member", "Your role: member, by membership"],
    ["maintainer", "viewer", "member", "Your role: maintainer, by a group"],
    [null, null, null, "You have no role"],
  ] as const)("%s (everyone %s, member %s)", (role, everyone, own, words) => {
    const members = own === null ? [] : [member("ada", own)];
    expect(ownRoleWords({ role, everyone }, [...members, member("bob", "viewer")], ada())).toBe(
      words,
    );
  });

  it("of an admin comes from the cluster", () => {
    const project = { role: "maintainer", everyone: null } as const;
    expect(ownRoleWords(project, [], ada("admin"))).toBe("Your role: maintainer, as an admin");
  });
});

it("the end of a membership leaves the role of everyone, or that of an admin", () => {
  expect(lossOf("bob", null)).toContain("no longer sees the project");
  expect(lossOf("bob", "viewer")).toBe("bob keeps the role viewer, which everyone has.");
  expect(ownLoss(null, false)).toContain("no longer see");
  expect(ownLoss("member", false)).toBe("You keep the role member, which everyone has.");
  expect(ownLoss(null, true)).toBe("As an admin, you stay a maintainer.");
});

it("changes of roles have their command lines", () => {
  expect(setCommand("vision", "", "member")).toBe(
    "trainyard members add NAME member --project vision",
  );
  expect(removeCommand("vision", "ada")).toBe("trainyard members remove ada --project vision");
  expect(everyoneCommand("vision", null)).toBe("trainyard members everyone none --project vision");
  expect(groupCommand("vision", "/research/a b", "viewer")).toBe(
    "trainyard groups set '/research/a b' viewer --project vision",
  );
  expect(groupCommand("vision", "", null)).toBe("trainyard groups set GROUP none --project vision");
  expect(accountCommand("vision", "nightly", "member")).toBe(
    "trainyard service-accounts create nightly --project vision",
  );
  expect(accountCommand("vision", "nightly", "viewer")).toBe(
    "trainyard service-accounts create nightly --project vision --role viewer",
  );
});
