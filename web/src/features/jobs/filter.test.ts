import { describe, expect, it } from "vitest";
import { EVERYONE, legalSearch } from "@/shared/api/queries";
import type { Session } from "@/shared/api/types";
import { JOBS } from "@/shared/url/pages";
import { changed, type ValuesOf, valuesIn } from "@/shared/url/params";
import { listCommand, personOf, toggled, withDefaultOwner } from "./filter";

const readFilter = (search: URLSearchParams) => valuesIn(JOBS, search);
const writeFilter = (filter: ValuesOf<typeof JOBS>) => changed(JOBS, new URLSearchParams(), filter);

describe("the filter in the URL", () => {
  it("survives a round trip", () => {
    const filter = {
      states: ["queued" as const, "failed" as const],
      tags: ["a/b"],
      project: "vision",
      search: "x",
      owner: "ada",
    };
    expect(readFilter(writeFilter(filter))).toEqual(filter);
    expect(
      writeFilter({ states: [], tags: [], project: "", search: "", owner: "" }).toString(),
    ).toBe("");
  });

  it("omits values that the server would refuse", () => {
    const params = new URLSearchParams(
      "state=running&state=sleeping&tag=ok&tag=%20no&q=%20a%20b=1%0A&project=%20no&owner=Ada",
    );
    expect(readFilter(params)).toEqual({
      states: ["running"],
      tags: ["ok"],
      project: "",
      search: "a b=1",
      owner: "",
    });
    expect(legalSearch("x".repeat(400))).toHaveLength(200);
  });

  it("may name a service account as the owner", () => {
    expect(readFilter(new URLSearchParams("owner=nightly%40vision")).owner).toBe("nightly@vision");
  });

  it("toggles one value", () => {
    expect(toggled(["a"], "b")).toEqual(["a", "b"]);
    expect(toggled(["a", "b"], "a")).toEqual(["b"]);
  });

  it("has its command line", () => {
    const filter = {
      states: ["failed" as const],
      tags: ["a/b"],
      project: "vision",
      search: "llama",
      owner: "ada",
    };
    const line = "trainyard ps --state failed --tag a/b --project vision --search llama";
    expect(listCommand(filter, "ada")).toBe(`${line} --mine`);
    expect(listCommand(filter, null)).toBe(`${line} --owner ada`);
    expect(listCommand({ ...filter, owner: EVERYONE }, "ada")).toBe(line);
  });
});

describe("the owner", () => {
  const none = { states: [], tags: [], project: "", search: "", owner: "" };
  const session = (name: string, isShared: boolean): Session => ({
    name: "laptop",
    kind: "api",
    permissions: [],
    expires_at: null,
    user: { id: "1", name, role: "user", email: null, has_password: true, issuer: null },
    is_shared: isShared,
  });

  it("is the reader, if several people share the server", () => {
    expect(personOf(session("ada", true))).toBe("ada");
    expect(personOf(session("ada", false))).toBeNull();
    expect(personOf(session("admin", true))).toBeNull();
    expect(personOf(null)).toBeNull();
  });

  it("is chosen only where the URL has no filter", () => {
    expect(withDefaultOwner(none, "ada").owner).toBe("ada");
    expect(withDefaultOwner(none, null)).toBe(none);
    expect(withDefaultOwner({ ...none, owner: EVERYONE }, "ada").owner).toBe(EVERYONE);
    expect(withDefaultOwner({ ...none, owner: "bob" }, "ada").owner).toBe("bob");
    expect(withDefaultOwner({ ...none, project: "vision" }, "ada").owner).toBe("");
  });
});
