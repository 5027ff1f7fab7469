{
  description = "agentinit: PID 1 and process supervisor of an agent container";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      eachSystem = f: lib.genAttrs systems (system: f system nixpkgs.legacyPackages.${system});
      # With an overridden input nix drops rev; an unclean tree has dirtyRev.
      commit = self.rev or self.dirtyRev or "unknown";
      packagesFor =
        system: pkgs:
        let
          agentbox = pkgs.callPackage ./nix/package.nix { inherit commit; };
        in
        {
          inherit agentbox;
          default = agentbox;
          image = pkgs.callPackage ./nix/image.nix { inherit agentbox; };
          compose = pkgs.callPackage ./nix/compose.nix { inherit agentbox; };
        };
    in
    {
      packages = eachSystem packagesFor;

      overlays.default = final: prev: {
        agentbox = final.callPackage ./nix/package.nix { inherit commit; };
      };

      apps = eachSystem (
        system: pkgs: {
          default = {
            type = "app";
            program = "${self.packages.${system}.agentbox}/bin/agentctl";
          };
        }
      );

      checks = eachSystem (
        system: pkgs:
        let
          inherit (self.packages.${system}) agentbox compose;
        in
        {
          inherit agentbox;
          manifest = pkgs.runCommand "agentbox-manifest" { nativeBuildInputs = [ agentbox ]; } ''
            agentctl config validate ${./examples/minimal.toml}
            touch $out
          '';
          compose-drift = pkgs.runCommand "agentbox-compose-drift" { } ''
            diff -u ${./examples/docker-compose.yml} ${compose}
            touch $out
          '';
        }
      );

      devShells = eachSystem (
        system: pkgs: {
          default = pkgs.mkShell {
            packages = [
              pkgs.go
              pkgs.go-tools
              pkgs.gnumake
              pkgs.podman
              pkgs.runc
              pkgs.prometheus
            ];
          };
        }
      );

      formatter = eachSystem (system: pkgs: pkgs.nixfmt-tree);
    };
}
