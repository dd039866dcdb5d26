// The defaults of the job spec, read from its JSON Schema. Pure.
import { fieldsOf } from "@/shared/job/differences";

interface Schema {
  properties?: Record<string, { default?: unknown }>;
}

/** Return the default of each field, by its path, as text; `env` has none and begins empty. */
export function defaultsOf(schema: unknown): Map<string, string> {
  const { properties = {} } = schema as Schema;
  const defaults = Object.entries(properties).map(([name, property]) => [
    name,
    property.default ?? {},
  ]);
  return new Map(fieldsOf(Object.fromEntries(defaults)));
}
