// Opens a session of this browser, then the page that it was sent from.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "react-router";
import { api, ask } from "@/shared/api/client";
import type { components } from "@/shared/api/schema";
import { beginSession, SENDS_SECRET } from "@/shared/api/session";

type SessionRequest = components["schemas"]["SessionRequest"];

export type LogIn = ReturnType<typeof useLogIn>;

export function useLogIn(next: string) {
  const client = useQueryClient();
  const navigate = useNavigate();
  return useMutation({
    meta: SENDS_SECRET,
    mutationFn: (body: SessionRequest) => ask(api.POST("/api/v1/auth/session", { body })),
    onSuccess: (session) => {
      beginSession(client, session);
      void navigate(next, { replace: true });
    },
  });
}
