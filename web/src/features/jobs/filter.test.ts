import { describe, expect, it } from "vitest";
import { legalSearch } from "@/shared/api/queries";
import { JOBS } from "@/shared/url/pages";
import { changed, type ValuesOf, valuesIn } from "@/shared/url/params";
import { listCommand, toggled } from "./filter";

const readFilter = (search: URLSearchParams) => valuesIn(JOBS, search);
const writeFilter = (filter: ValuesOf<typeof JOBS>) => changed(JOBS, new URLSearchParams(), filter);

describe("the filter in the URL", () => {
  it("survives a round trip", () => {
    const filter = {
      states: ["queued" as const, "failed" as const],
      tags: ["a/b"],
      project: "vision",
      search: "x",
    };
    expect(readFilter(writeFilter(filter))).toEqual(filter);
    expect(writeFilter({ states: [], tags: [], project: "", search: "" }).toString()).toBe("");
  });

  it("omits values that the server would refuse", () => {
    const params = new URLSearchParams(
      "state=running&state=sleeping&tag=ok&tag=%20no&q=%20a%20b=1%0A&project=%20no",
    );
    expect(readFilter(params)).toEqual({
      states: ["running"],
      tags: ["ok"],
      project: "",
      search: "a b=1",
    });
    expect(legalSearch("x".repeat(400))).toHaveLength(200);
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
    };
    expect(listCommand(filter)).toBe(
      "trainyard ps --state failed --tag a/b --project vision --search llama",
    );
  });
});
