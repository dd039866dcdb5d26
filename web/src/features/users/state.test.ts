import { describe, expect, it } from "vitest";
import type { User } from "@/shared/api/types";
import { changeCommand, changesOf, inviteCommand, stateOf } from "./state";

const NOW = Date.parse("2026-01-01T00:00:00Z");
const SOON = "2026-01-07T00:00:00Z";
const ada: User = {
  id: "01jd",
  name: "ada",
  email: null,
  kind: "person",
  project: null,
  has_ended: false,
  issuer: null,
  role: "user",
  state: "active",
  is_built_in: false,
  has_password: true,
  invited_until: null,
  created_at: "2025-12-01T00:00:00Z",
  disabled_at: null,
  last_used_at: null,
  unix_account: null,
};

describe("the state of a user", () => {
  it.each<[Partial<User>, string, string | null]>([
    [{}, "active", null],
    [{ invited_until: SOON }, "active", "link for a new password ends in 6 d"],
    [{ has_password: false, invited_until: SOON }, "invited", "link ends in 6 d"],
    [{ has_password: false }, "no password", "the invitation has ended"],
    [
      { has_password: false, invited_until: "2025-12-31T23:59:59Z" },
      "no password",
      "the invitation has ended",
    ],
    [{ has_password: false, issuer: "https://id.example" }, "active", "by single sign-on"],
    [{ state: "disabled", has_password: false }, "disabled", null],
    [{ kind: "service", project: "vision", has_password: false }, "service account", "of vision"],
    [{ kind: "service", project: "vision", state: "disabled" }, "disabled", null],
    [
      { kind: "service", project: "vision", state: "disabled", has_ended: true },
      "ended",
      "of vision",
    ],
    [{ is_built_in: true, has_password: false }, "built in", "has the admin token"],
  ])("%j is %s", (fields, words, note) => {
    expect(stateOf({ ...ada, ...fields }, NOW)).toMatchObject({ words, note });
  });
});

describe("command lines", () => {
  it("invite with what differs from the defaults", () => {
    expect(inviteCommand({ name: "", email: "", role: "user" })).toBe(
      "trainyard users invite NAME",
    );
    expect(inviteCommand({ name: "ada", email: " a@b.example ", role: "admin" })).toBe(
      "trainyard users invite ada --email a@b.example --role admin",
    );
  });

  const typed = { role: ada.role, email: "", account: "" };

  it("change the Unix account", () => {
    const account = changesOf(ada, { ...typed, account: " ada " });
    expect(account).toEqual({ unix_account: "ada" });
    expect(changeCommand(ada, account)).toBe("trainyard users change ada --unix-account ada");
    const removed = changesOf({ ...ada, unix_account: "ada" }, typed);
    expect(changeCommand(ada, removed)).toBe("trainyard users change ada --unix-account ''");
    const both = changesOf(ada, { ...typed, role: "operator", account: "ada" });
    expect(changeCommand(ada, both)).toContain('{"role":"operator","unix_account":"ada"}');
  });

  it("change the role, or by the API the e-mail address", () => {
    expect(changesOf(ada, { ...typed, email: "  " })).toEqual({});
    const role = changesOf(ada, { ...typed, role: "operator" });
    expect(changeCommand(ada, role)).toBe("trainyard users role ada operator");
    const email = changesOf(ada, { ...typed, email: "a@b.example" });
    expect(changeCommand(ada, email)).toBe(
      `curl -X PATCH -H "Authorization: Bearer $TRAINYARD_TOKEN" --json '{"email":"a@b.example"}' "$TRAINYARD_URL/api/v1/users/01jd"`,
    );
    expect(changesOf({ ...ada, email: "a@b.example" }, typed)).toEqual({ email: null });
  });
});
