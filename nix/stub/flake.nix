# A stand-in for nixpkgs, not nixpkgs: CI evaluates and builds our flake with it
# offline. It proves our Nix code against our own idea of nixpkgs and no more; it
# does not prove that the locked nixpkgs accepts our arguments (docs/build.md).
#
# Functions take closed lists of arguments, so that a misspelt or obsolete one
# fails here. Packages of features are directories with an empty program.
{
  outputs =
    { self }:
    {
      lib = import ./lib.nix;
      legacyPackages = (import ./lib.nix).genAttrs [
        "x86_64-linux"
        "aarch64-linux"
      ] (system: import ./. { inherit system; });
    };
}
