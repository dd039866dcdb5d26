"""Logins and logouts of browsers through the issuer of single sign-on."""
