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

      # The outputs that need a choice of packages; pkgs may be the caller's own.
      boxOf = system: pkgs: rec {
        agentbox = pkgs.callPackage ./nix/package.nix { inherit commit; };
        image = args: pkgs.callPackage ./nix/image.nix ({ inherit agentbox commit system; } // args);
        generated =
          args: pkgs.callPackage ./nix/generated.nix ({ inherit agentbox system; } // args);
      };
      # CUDA and some command lines of agents are not free software; choosing an
      # image that holds them is the consent.
      unfree =
        system:
        import nixpkgs {
          inherit system;
          config.allowUnfree = true;
        };

      packagesFor =
        system: pkgs:
        let
          box = boxOf system pkgs;
          large = boxOf system (unfree system);
        in
        {
          inherit (box) agentbox;
          default = box.agentbox;
          # The image of a manifest: runtime.override { manifest = ./agentbox.toml; }.
          runtime = box.image { };
          desktop = box.image {
            manifest = ./nix/images/desktop.toml;
            tag = "desktop-${system}";
          };
          # Every feature that runs on both systems; what nixpkgs lacks is left out,
          # and passthru.missing names it.
          full = large.image {
            manifest = ./nix/images/full.toml;
            tag = "full-${system}";
            allowMissing = true;
          };
          compose = box.generated {
            format = "compose";
            name = "docker-compose.yml";
          };
          kubernetes = box.generated {
            format = "kubernetes";
            name = "agentbox.yaml";
            flags = [ "--pod-monitor" ];
          };
          quadlet = box.generated {
            format = "quadlet";
            name = "agentbox-quadlet";
          };
        }
        # gpu.backend = "local-cuda" is for x86_64 alone (E008).
        // lib.optionalAttrs (system == "x86_64-linux") {
          cuda-runtime = large.image {
            manifest = ./nix/images/cuda.toml;
            tag = "cuda-runtime-${system}";
          };
        };
    in
    {
      packages = eachSystem packagesFor;

      # mkImage { pkgs; manifest; … } builds an image with packages of the caller,
      # who decides about overlays and unfree software.
      lib.mkImage =
        { pkgs, ... }@args:
        (boxOf pkgs.stdenv.hostPlatform.system pkgs).image (removeAttrs args [ "pkgs" ]);

      overlays.default = final: prev: {
        agentbox = final.callPackage ./nix/package.nix { inherit commit; };
      };

      nixosModules.default = import ./nix/module.nix self;

      apps = eachSystem (
        system: pkgs:
        let
          program = name: {
            type = "app";
            program = "${self.packages.${system}.agentbox}/bin/${name}";
          };
        in
        {
          default = program "agentctl";
          agentctl = program "agentctl";
          agentinit = program "agentinit";
        }
      );

      checks = eachSystem (
        system: pkgs:
        let
          packages = self.packages.${system};
          same =
            name: file: built:
            pkgs.runCommand "agentbox-${name}-drift" { } ''
              diff -u ${file} ${built}
              touch $out
            '';
        in
        {
          # Its check phase runs the tests; its vendorHash is checked with them.
          inherit (packages) agentbox;
          # Each fails on any E-code of its manifest.
          manifest = packages.runtime.manifest;
          manifest-desktop = packages.desktop.manifest;
          manifest-full = packages.full.manifest;
          # The committed files are those of x86_64-linux.
          compose-drift = same "compose" ./examples/docker-compose.yml (
            packages.compose.override { system = "x86_64-linux"; }
          );
          kubernetes-drift = same "kubernetes" ./examples/kubernetes/agentbox.yaml (
            packages.kubernetes.override {
              system = "x86_64-linux";
              flags = [ "--pod-monitor=true" ];
            }
          );
        }
        // lib.optionalAttrs (packages ? cuda-runtime) {
          manifest-cuda = packages.cuda-runtime.manifest;
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
              pkgs.shellcheck
            ];
          };
        }
      );

      formatter = eachSystem (system: pkgs: pkgs.nixfmt-tree);
    };
}
