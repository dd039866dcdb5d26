import { describe, expect, it } from "vitest";
import { SHOWN_COLUMNS, SHOWN_ROWS, tableOf } from "./tables";

describe("a table of a script", () => {
  it("has its first rows", () => {
    const data = Array.from({ length: 99 }, (_, row) => [row, null, true, "x", { a: [1] }]);
    const found = tableOf(
      JSON.stringify({ columns: ["a", "b", "c", "d", "e"], data, left_out: 3 }),
    );
    expect(found?.rows).toHaveLength(SHOWN_ROWS);
    expect(found?.rows[1]).toEqual([1, null, true, "x", '{"a":[1]}']);
    expect([found?.total, found?.width, found?.leftOut]).toEqual([99, 5, 3]);
  });

  it("has a bounded width", () => {
    const columns = Array.from({ length: 200 }, (_, place) => `c${place}`);
    const found = tableOf(JSON.stringify({ columns, data: [columns] }));
    expect(found?.columns).toHaveLength(SHOWN_COLUMNS);
    expect(found?.rows[0]).toHaveLength(SHOWN_COLUMNS);
  });

  it("is no other JSON or text", () => {
    for (const text of ["", "[]", "null", "{}", '{"columns":1,"data":[]}', "{torn"]) {
      expect(tableOf(text)).toBeNull();
    }
    expect(tableOf('{"columns":["a"],"data":[3]}')?.rows).toEqual([[]]);
  });
});
