"""Single sign-on through an OpenID Connect issuer (docs/sso.md)."""
