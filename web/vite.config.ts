// Builds the dashboard into dist/, which the server serves; runs its unit tests.
import react from "@vitejs/plugin-react";
import { loadEnv } from "vite";
import { defineConfig } from "vitest/config";

export default defineConfig(({ mode }) => {
  const target = loadEnv(mode, ".", "TRAINYARD_").TRAINYARD_URL ?? "http://127.0.0.1:8470";
  return {
    plugins: [react()],
    resolve: { alias: { "@": new URL("./src", import.meta.url).pathname } },
    build: { target: "es2022", assetsInlineLimit: 0 },
    // The server refuses writes whose Origin is not its own, so the proxy sends the server's own origin.
    server: { proxy: { "/api": { target, changeOrigin: true, headers: { origin: target } } } },
    test: { css: true, environment: "node", include: ["src/**/*.test.{ts,tsx}"] },
  };
});
