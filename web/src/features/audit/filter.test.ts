import { describe, expect, it } from "vitest";
import type { AuditRow } from "@/shared/api/types";
import { AUDIT } from "@/shared/url/pages";
import { valuesIn } from "@/shared/url/params";
import { auditCommand, changeOf, wanted, whoOf } from "./filter";

const at = (search: string) => valuesIn(AUDIT, new URLSearchParams(search));
const row = (fields: Partial<AuditRow>) => fields as AuditRow;

describe("the filter of the audit log", () => {
  it("restricts nothing by default", () => {
    expect(wanted(at(""))).toEqual({});
    expect(auditCommand(at(""))).toBe("trainyard audit");
  });

  it("has its request and its command line", () => {
    const filter = at("user=ada&object=projects/vision&outcome=refused&operation=members_put");
    expect(wanted(filter)).toEqual({
      user: "ada",
      object: "projects/vision",
      outcome: "refused",
      operation: "members_put",
    });
    expect(auditCommand(filter)).toBe(
      "trainyard audit --user ada --object projects/vision --operation members_put --outcome refused",
    );
  });

  it("includes its last day", () => {
    const filter = at("from=2026-02-27&to=2026-02-28");
    const { since, until } = wanted(filter);
    expect(Date.parse(until ?? "") - Date.parse(since ?? "")).toBe(48 * 3_600_000);
    expect(auditCommand(filter)).toBe("trainyard audit --since 2026-02-27 --until 2026-03-01");
  });

  it("omits what the server would refuse", () => {
    const search = "user=A%20B&project=-&object=a%20b&operation=X&outcome=odd&from=2026-2-1&to=x";
    expect(wanted(at(search))).toEqual({});
    expect(wanted(at("from=2026-02-31"))).toEqual({});
  });
});

describe("words of a row", () => {
  it.each([
    [{ user: "ada", token: "laptop" }, "ada (laptop)"],
    [{ user: "ada", token: null }, "ada"],
    [{ user: null, token: "ci" }, "ci"],
    [{ user: null, token: null, address: "10.0.0.1" }, "10.0.0.1"],
  ])("of the caller %j", (fields, words) => expect(whoOf(row(fields))).toBe(words));

  it.each([
    [{}, ""],
    [{ before: { role: "viewer" }, after: { role: "member" } }, "role: viewer → member"],
    [{ before: null, after: { name: "ci", scopes: ["a", "b"] } }, "name: ci, scopes: a b"],
    [{ before: { max_slots: null }, after: { max_slots: 8 } }, "max_slots: none → 8"],
    [{ before: { name: "ci" }, after: null }, "name: ci"],
    [{ before: { description: "a" }, after: { description: "" } }, "description: a → empty"],
  ])("of the change %j", (fields, words) => expect(changeOf(row(fields))).toBe(words));
});
