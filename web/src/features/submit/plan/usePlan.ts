// The plan of a draft, requested when typing pauses.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { api, ask } from "@/shared/api/client";
import { ApiError } from "@/shared/api/errors";
import { keys } from "@/shared/api/queries";
import type { components } from "@/shared/api/schema";
import type { AnyPlan } from "@/shared/api/types";
import { useSettled } from "@/shared/api/useSettled";
import type { JsonObject } from "@/shared/format/document";

const TYPING_MILLISECONDS = 250;

export interface Planned {
  /** The plan of this draft, or of the last legal draft if this one has none. */
  plan: AnyPlan | undefined;
  /** Why the draft would be refused. */
  refusal: ApiError | null;
  /** Whether `plan` belongs to an earlier draft. */
  isOld: boolean;
  /** Any error except a refusal. */
  error: Error | null;
}

export function usePlan(spec: JsonObject): Planned {
  const settled = useSettled(spec, TYPING_MILLISECONDS);
  const query = useQuery({
    queryKey: [...keys.plan, settled],
    queryFn: ({ signal }) => ask(api.POST("/api/v1/jobs/plan", { body: bodyOf(settled), signal })),
    placeholderData: keepPreviousData,
    gcTime: 60_000,
  });
  const [last, setLast] = useState<AnyPlan>();
  useEffect(() => {
    if (query.data) setLast(query.data);
  }, [query.data]);
  const refusal = query.error instanceof ApiError ? query.error : null;
  return {
    plan: query.data ?? last,
    refusal,
    isOld: query.data === undefined || query.isPlaceholderData || settled !== spec,
    error: refusal ? null : query.error,
  };
}

/** A draft may be invalid: the server validates it, not the compiler. */
export function bodyOf(spec: JsonObject): components["schemas"]["JobSpecInput"] {
  return spec as components["schemas"]["JobSpecInput"];
}
