# `import nixpkgs { system; config; }`, as nixpkgs takes it.
{
  system,
  config ? { },
  overlays ? [ ],
}:
import ./pkgs.nix { inherit system config; }
