import { describe, expect, it } from "vitest";
import { ask } from "./client";
import {
  ApiError,
  errorAt,
  errorBeyond,
  isUnauthenticated,
  messageOf,
  UnreachableError,
  withoutSeconds,
} from "./errors";
import { allPages } from "./queries";

const refused = (status: number, error: unknown) =>
  ask(Promise.resolve({ error, response: new Response(null, { status }) }));

describe("answers", () => {
  it("are returned as the server sent them", async () => {
    const response = new Response(null, { status: 200 });
    expect(await ask(Promise.resolve({ data: { id: "x" }, response }))).toEqual({ id: "x" });
  });

  it("become a typed refusal with each field", async () => {
    const errors = [{ pointer: "/name", detail: "taken" }];
    const problem = { title: "Not valid", status: 422, detail: "name: taken", errors };
    const error = await refused(422, problem).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(ApiError);
    expect((error as ApiError).errors).toEqual(errors);
    expect(errorAt(error, "/name")).toBe("taken");
    expect(errorAt(error, "/other")).toBeUndefined();
    expect(errorBeyond(error, ["/name"])).toBeNull();
    expect(errorBeyond(error, ["/other"])).toBe(error);
    expect(messageOf(error)).toBe("name: taken");
  });

  it("of a proxy say their status", async () => {
    const error = await refused(502, "<html>").catch((thrown: unknown) => thrown);
    expect((error as ApiError).status).toBe(502);
  });

  it("name the seconds to wait", async () => {
    const wait = (seconds: string) =>
      ask(
        Promise.resolve({
          error: null,
          response: new Response(null, { status: 429, headers: { "retry-after": seconds } }),
        }),
      ).catch((thrown: unknown) => (thrown as ApiError).retrySeconds);
    expect(await wait("42")).toBe(42);
    expect(await wait("Tue, 01 Dec 2026 00:00:00 GMT")).toBeNull();
    const text = "10 logins as 'ada' failed; try again in 840 seconds";
    expect(withoutSeconds(text)).toBe("10 logins as 'ada' failed");
  });

  it("that do not come are told apart from refusals", async () => {
    const lost = ask(Promise.reject(new TypeError("fetch failed")));
    await expect(lost).rejects.toBeInstanceOf(UnreachableError);
    const error = await refused(401, null).catch((thrown: unknown) => thrown);
    expect(isUnauthenticated(error)).toBe(true);
  });
});

it("reads all pages of a short list", async () => {
  const asked: unknown[] = [];
  const items = await allPages<number>(async (query) => {
    asked.push(query);
    return query.page_token ? { items: [3] } : { items: [1, 2], next_page_token: "t" };
  });
  expect(items).toEqual([1, 2, 3]);
  expect(asked).toEqual([{ page_size: 200 }, { page_size: 200, page_token: "t" }]);
});
