import { QueryClient, QueryObserver } from "@tanstack/react-query";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { REFRESH_PAUSE, Refresher } from "./refresh";

const KEY = ["slow"];
const SLOW = 300;
let client: QueryClient;
let cut: number;
let reads: number;

beforeEach(() => {
  vi.useFakeTimers();
  [cut, reads] = [0, 0];
  client = new QueryClient();
  const observer = new QueryObserver(client, {
    queryKey: KEY,
    queryFn: ({ signal }) => {
      reads += 1;
      signal.addEventListener("abort", () => {
        cut += 1;
      });
      return new Promise((done) => setTimeout(() => done(reads), SLOW));
    },
  });
  observer.subscribe(() => {});
});

afterEach(() => vi.useRealTimers());

it("ends a slow read while events arrive all the time", async () => {
  await vi.advanceTimersByTimeAsync(SLOW);
  const refresher = new Refresher(client);
  for (let event = 0; event < 50; event += 1) {
    refresher.refresh(KEY);
    await vi.advanceTimersByTimeAsync(100); // less than a read takes
  }
  expect(cut).toBe(0);
  expect(client.getQueryData(KEY)).toBeGreaterThan(4);
  expect(reads).toBeLessThan(1 + 5_000 / REFRESH_PAUSE);
});

it("reads again after events that came during a read", async () => {
  await vi.advanceTimersByTimeAsync(SLOW);
  const refresher = new Refresher(client);
  for (let event = 0; event < 5; event += 1) refresher.refresh(KEY);
  await vi.advanceTimersByTimeAsync(5 * (SLOW + REFRESH_PAUSE));
  expect(reads).toBe(3);
});
