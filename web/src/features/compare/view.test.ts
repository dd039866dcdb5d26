import { describe, expect, it } from "vitest";
import { clock, placeText, stretchText, wholeStretch } from "@/shared/ui/chart/axis";
import { COMPARE, type CompareView } from "@/shared/url/pages";
import { pathTo, valuesIn } from "@/shared/url/params";
import { compareCommand } from "./api";
import { bringsNews } from "./useComparison";
import { drawnNames, jobsOf, withJob, withoutJob } from "./view";

const readView = (search: string) => valuesIn(COMPARE, new URLSearchParams(search));
const writeView = (values: CompareView) => pathTo("", COMPARE, values);

const [A, B, C] = ["a", "b", "c"].map((letter) => `01jd3m6y${letter.repeat(18)}`) as [
  string,
  string,
  string,
];
const view: CompareView = {
  slots: [A, null, C],
  names: ["train/loss", "perf/mfu"],
  axis: "tokens",
  isLog: true,
  isFull: true,
  smoothing: 0.6,
  range: [1000, 2500],
};

describe("the comparison in the URL", () => {
  it("survives a round trip, and is readable", () => {
    expect(readView(writeView(view))).toEqual(view);
    expect(writeView(view)).toBe(
      `?jobs=${A},,${C}&names=train/loss,perf/mfu&x=tokens&y=log&full=1&smooth=0.6&from=1000&to=2500`,
    );
    expect(writeView(readView(""))).toBe("");
    expect(readView(writeView({ ...view, names: [] })).names).toEqual([]);
  });

  it("omits values that the server would refuse", () => {
    const read = readView(
      `?jobs=${A},nothing,${A},${B}&names=ok, no,also ok,ok&x=epochs&smooth=7&from=9&to=3`,
    );
    expect(read).toEqual({
      slots: [A, null, null, B],
      names: ["ok", "also ok"],
      axis: "step",
      isLog: false,
      isFull: false,
      smoothing: 0.99,
      range: null,
    });
  });

  it("keeps too many jobs, so that the page can report them", () => {
    const many = Array.from({ length: 9 }, (_, n) => `01jd3m6y${"0".repeat(17)}${n}`);
    expect(jobsOf(readView(`?jobs=${many.join(",")}`))).toEqual(many);
    const spread = many.slice(0, 5).join(",,");
    expect(readView(`?jobs=${spread}`).slots).toEqual(many.slice(0, 5));
  });

  it("keeps the place of a job when another one leaves, and fills the gap", () => {
    expect(withoutJob([A, B, C], B)).toEqual([A, null, C]);
    expect(withoutJob([A, B, C], C)).toEqual([A, B]);
    expect(withJob([A, null, C], B)).toEqual([A, B, C]);
    expect(withJob([A], B)).toEqual([A, B]);
    expect(withJob([A], A)).toEqual([A]);
  });
});

describe("series that are drawn", () => {
  const known = new Set(["own/a", "train/loss", "train/lr"]);

  it("are the chosen ones that any job has", () =>
    expect(drawnNames(["train/lr", "gone"], known)).toEqual(["train/lr"]));

  it("are the defaults if none was chosen, else the existing ones", () => {
    expect(drawnNames(null, known)).toEqual(["train/loss", "train/lr"]);
    expect(drawnNames(null, new Set(["own/a"]))).toEqual(["own/a"]);
    expect(drawnNames([], known)).toEqual([]);
  });

  it("change when an event contains a new one, or more than points", () => {
    const event = (kind: string, values = {}) => ({ kind, data: { values } }) as never;
    expect(bringsNews(event("metrics", { "train/loss": 1 }), known)).toBe(false);
    expect(bringsNews(event("metrics", { "validation/loss": 1 }), known)).toBe(true);
    expect(bringsNews(event("job_ended"), known)).toBe(true);
  });
});

describe("axes", () => {
  it.each([
    [0, "0 s"],
    [45, "45 s"],
    [90, "1:30 min"],
    [300, "5 min"],
    [9_000, "2:30 h"],
    [86_400, "1 d"],
    [129_600, "1 d 12 h"],
    [0.5, ""],
  ])("write %s seconds as %s", (seconds, text) => expect(clock(seconds)).toBe(text));

  it("name a place", () => {
    expect(placeText("step", 1200.4)).toBe("step 1,200");
    expect(placeText("tokens", 1_204_000)).toBe("1.20M tokens");
    expect(placeText("seconds", 200)).toBe("3 min 20 s");
    expect(stretchText("step", [650, 1760])).toBe("steps 650–1,760");
    expect(stretchText("tokens", [1_204_000, 2e6])).toBe("1.20M–2.00M tokens");
    expect(stretchText("seconds", [30, 200])).toBe("30 s – 3 min 20 s");
  });

  it("zoom to whole numbers, never to an empty range", () => {
    expect(wholeStretch([-3.2, 7.1], "step")).toEqual([0, 8]);
    expect(wholeStretch([5, 5], "tokens")).toEqual([5, 6]);
    expect(wholeStretch([1.26, 1.27], "seconds")).toEqual([1.2, 1.3]);
  });
});

describe("the command line", () => {
  it("writes the same curves", () => {
    const wanted = { jobs: [A, B], names: ["train/loss"], axis: "tokens" as const };
    expect(compareCommand({ ...wanted, range: [0, 5000] })).toBe(
      `trainyard compare ${A} ${B} --names train/loss --x tokens --from 0 --to 5000 --csv`,
    );
    expect(compareCommand({ ...wanted, range: null })).toBe(
      `trainyard compare ${A} ${B} --names train/loss --csv`,
    );
  });
});
