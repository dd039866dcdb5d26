"""The rank is a stand-in (`__main__`); every other module is that of the real trainer."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
