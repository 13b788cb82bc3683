"""kvaudit: did anything of one tenant reach another through the inference server?"""

__version__ = "0.1.0"
