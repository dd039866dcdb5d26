import { describe, expect, test } from "vitest";
import { GOODPUT, JOB, LOGIN, loginPath, SUBMIT, submitPath } from "./pages";
import { changed, type Params, pathTo, type ValuesOf, valuesIn } from "./params";

const read = <Declared extends Params>(declared: Declared, search: string): ValuesOf<Declared> =>
  valuesIn(declared, new URLSearchParams(search));

describe("the days of the goodput page", () => {
  test.each([
    ["?days=7", 7],
    ["?days=90", 90],
    ["", 30],
    ["?days=8", 30],
    ["?days=999999999999", 30],
  ])("%s are %i", (search, days) => {
    expect(read(GOODPUT, search).days).toBe(days);
  });

  test("are written unless they are the usual ones", () => {
    expect(pathTo("/goodput", GOODPUT, { days: 90 })).toBe("/goodput?days=90");
    expect(pathTo("/goodput", GOODPUT, { days: 30 })).toBe("/goodput");
  });
});

describe("the parameters of a job page", () => {
  test("are read by kind, and written in the order of their declaration", () => {
    const search = "?tab=logs&attempt=2&rank=0&line=12&q=loss&y=log&full=1&fields=all&do=stop";
    const values = read(JOB, search);
    expect(values).toMatchObject({
      tab: "logs",
      attempt: 2,
      rank: 0,
      line: 12,
      search: "loss",
      range: null,
      isLog: true,
      isFull: true,
      hasMoreCharts: false,
      hasAllFields: true,
      dialog: "stop",
      aim: null,
    });
    expect(pathTo("", JOB, values)).toBe(search);
  });

  test("default to their first word, which the URL omits", () => {
    expect(read(JOB, "?tab=moon&attempt=-1&line=last&aim=up&from=5&to=5")).toEqual(read(JOB, ""));
    expect(read(JOB, "").tab).toBe("charts");
    const search = new URLSearchParams("tab=logs&from=1&to=9&line=error");
    expect(changed(JOB, search, { tab: "charts", range: null }).toString()).toBe("line=error");
    const added = changed(JOB, new URLSearchParams("line=3"), { attempt: 2 });
    expect(added.toString()).toBe("attempt=2&line=3");
  });

  test("change alone: others stay, undeclared ones included", () => {
    const search = new URLSearchParams("other=1&attempt=2");
    expect(changed(JOB, search, { rank: 3, search: "" }).toString()).toBe(
      "attempt=2&rank=3&other=1",
    );
  });
});

describe("links to pages", () => {
  test("are read again as they were written", () => {
    const path = submitPath({ from: "01jd", find: "training.steps" });
    expect(path).toBe("/jobs/new?from=01jd&find=training.steps");
    expect(read(SUBMIT, path.slice(path.indexOf("?")))).toEqual({
      from: "01jd",
      find: "training.steps",
      view: "form",
    });
    const login = loginPath({ next: "/compare?jobs=a,b&x=tokens" });
    expect(read(LOGIN, login.slice(login.indexOf("?"))).next).toBe("/compare?jobs=a,b&x=tokens");
  });
});
