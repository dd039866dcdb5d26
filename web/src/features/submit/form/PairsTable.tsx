// A table of names and values with rows that can be added and removed.

import { useId, useState } from "react";
import type { Json } from "@/shared/format/document";
import { Button } from "@/shared/ui/Button";
import type { FormField, Pairs } from "../schema";
import { isEqual } from "../spec";
import { type Row, referenceTyped, rowsOf, tableOf } from "./pairs";

export interface ControlProps {
  id: string;
  field: FormField;
  value: Json;
  isWrong: boolean;
  onChange: (value: Json) => void;
}

const EMPTY: Row = ["", ""];

/** Keeps rows as typed, also rows without a name or with a repeated name. */
export function PairsTable({
  id,
  field,
  value,
  isWrong,
  pairs,
  onChange,
}: ControlProps & { pairs: Pairs }) {
  const [typed, setTyped] = useState<readonly Row[]>([]);
  const [isShown, setIsShown] = useState(false);
  const list = useId();
  const rows = isEqual(tableOf(typed, pairs), value) ? typed : rowsOf(value, pairs);
  const change = (changed: readonly Row[]) => {
    setTyped(changed);
    onChange(tableOf(changed, pairs));
  };
  const add = () => {
    change([...rows, EMPTY]);
    requestAnimationFrame(() => document.getElementById(nameId(id, rows.length))?.focus());
  };
  const isSecret = ([name, text]: Row) =>
    pairs.isMasked && !pairs.names.includes(name) && referenceTyped(text ?? "") === null;
  return (
    <fieldset className="pairs" id={id} tabIndex={-1} aria-describedby={`${id}-said`}>
      <legend className="visually-hidden">{field.name}</legend>
      {rows.map((row, place) => (
        <PairRow
          // biome-ignore lint/suspicious/noArrayIndexKey: a row is its place while its name is typed
          key={place}
          ids={[nameId(id, place), `${id}-${row[0]}`]}
          row={row}
          list={pairs.names.length > 0 ? list : undefined}
          isHidden={isSecret(row) && !isShown}
          isWrong={isWrong}
          onChange={(changed) => change(rows.map((each, at) => (at === place ? changed : each)))}
          onRemove={() => change(rows.filter((_, at) => at !== place))}
        />
      ))}
      <div className="pairs-foot row">
        <Button small onClick={add}>
          {pairs.isMasked ? "Add variable" : "Add row"}
        </Button>
        {rows.some(isSecret) && (
          <Button small look="quiet" aria-pressed={isShown} onClick={() => setIsShown(!isShown)}>
            {isShown ? "Hide values" : "Show values"}
          </Button>
        )}
      </div>
      {pairs.names.length > 0 && (
        <datalist id={list}>
          {pairs.names.map((name) => (
            <option key={name} value={name} />
          ))}
        </datalist>
      )}
    </fieldset>
  );
}

function nameId(id: string, place: number): string {
  return `${id}-name-${place}`;
}

interface PairRowProps {
  ids: readonly [name: string, value: string];
  row: Row;
  /** Id of the list of suggested names. */
  list: string | undefined;
  isHidden: boolean;
  isWrong: boolean;
  onChange: (row: Row) => void;
  onRemove: () => void;
}

function PairRow({ ids, row, list, isHidden, isWrong, onChange, onRemove }: PairRowProps) {
  const [name, value] = row;
  const shared = {
    className: "input mono",
    spellCheck: false,
    "aria-invalid": isWrong || undefined,
  };
  return (
    <div className="pair">
      <input
        {...shared}
        id={ids[0]}
        aria-label={name === "" ? "Name" : `Name, ${name}`}
        placeholder="name"
        autoComplete="off"
        list={list}
        value={name}
        onChange={(event) => onChange([event.target.value, value])}
      />
      <input
        {...shared}
        id={ids[1]}
        type={isHidden ? "password" : "text"}
        aria-label={`Value of ${name || "a row without a name"}`}
        placeholder={value === null ? "not shown; enter it again" : "value"}
        autoComplete={isHidden ? "new-password" : "off"}
        value={value ?? ""}
        onChange={(event) => onChange([name, event.target.value])}
      />
      <Button
        small
        look="quiet"
        aria-label={`Remove ${name || "the row without a name"}`}
        onClick={onRemove}
      >
        Remove
      </Button>
    </div>
  );
}
