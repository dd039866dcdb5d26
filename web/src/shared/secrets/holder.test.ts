import { describe, expect, it } from "vitest";
import { listCommand, referenceTo, removeSecretCommand, setSecretCommand, valueIn } from "./holder";

describe("secrets of a project and own ones", () => {
  it.each([
    ["vision", "trainyard secrets --project vision"],
    [null, "trainyard secrets"],
  ])("of %s are listed by %s", (holder, words) => expect(listCommand(holder)).toBe(words));

  it("have command lines without values", () => {
    expect(setSecretCommand("vision", "hf")).toBe(
      "trainyard secrets set hf --project vision < FILE",
    );
    expect(setSecretCommand(null, "")).toBe("trainyard secrets set NAME < FILE");
    expect(removeSecretCommand(null, "hf")).toBe("trainyard secrets remove hf");
  });

  it("are named in specs", () => {
    expect(referenceTo("vision", "hf")).toBe('VARIABLE = {secret = "hf"}');
    expect(referenceTo(null, "hf")).toBe('VARIABLE = {secret = "hf", of = "owner"}');
  });
});

it.each([
  ["abc", "abc"],
  ["abc\n", "abc"],
  ["abc\r\n", "abc"],
  ["a\nb\n\n", "a\nb\n"],
  [" a ", " a "],
])("the value of %j is %j", (text, value) => expect(valueIn(text)).toBe(value));
