import { expect, it } from "vitest";
import { LEAST_ROLES } from "@/shared/api/permissions";
import type { Permission } from "@/shared/api/types";
import { heldBy, revokeCommand, tokenCommand } from "./account";

const ALL = Object.keys(LEAST_ROLES) as Permission[];
const NIGHTLY = { project: "vision", name: "nightly@vision", role: "viewer" } as const;

it("an account has the permissions of its role, as far as the maker has them", () => {
  const ofViewer = ["jobs:read", "projects:read", "nodes:read", "sources:read"];
  expect(heldBy("viewer", ALL).sort()).toEqual(ofViewer.sort());
  expect(heldBy("member", ALL)).toContain("code:run");
  expect(heldBy("member", ALL)).not.toContain("jobs:delete");
  expect(heldBy("member", ["jobs:read", "members:write"])).toEqual(["jobs:read"]);
});

it("a token of an account has its command line", () => {
  expect(tokenCommand(NIGHTLY, " ", null, 86_400)).toBe(
    "trainyard service-accounts token nightly@vision TOKEN --project vision --days 1",
  );
  expect(tokenCommand(NIGHTLY, "ci", ["jobs:read"], 90 * 86_400)).toBe(
    "trainyard service-accounts token nightly@vision ci --project vision --scope jobs:read --days 90",
  );
  expect(revokeCommand(NIGHTLY, "ci")).toBe(
    "trainyard service-accounts revoke nightly@vision ci --project vision",
  );
});
