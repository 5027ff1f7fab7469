# The packages and builders that our Nix code uses. The host provides bash,
# coreutils and Go: the sandbox of the check binds /bin, /usr and the module cache.
{ system, config }:
let
  lib = import ./lib.nix;
  goarch =
    {
      x86_64-linux = "amd64";
      aarch64-linux = "arm64";
    }
    .${system};
  # Where Go and the module proxy are, and which system can run tests; .ci/nix
  # writes it anew in its copy.
  host = builtins.fromJSON (builtins.readFile ./host.json);

  derive =
    {
      name,
      script,
      inputs ? [ ],
      attrs ? { },
    }:
    derivation (
      {
        inherit name system;
        builder = "/bin/bash";
        # bash would exec the last command; a coreutils program closes its output
        # before it exits, and nix kills a builder whose output ends.
        args = [
          "-euc"
          "${script}\n:"
        ];
        PATH = builtins.concatStringsSep ":" (map (i: "${i}/bin") inputs ++ [ "${host.go}/bin" "/usr/bin" "/bin" ]);
      }
      // attrs
    );

  runCommand =
    name:
    {
      nativeBuildInputs ? [ ],
      ...
    }@env:
    script:
    derive {
      inherit name script;
      inputs = nativeBuildInputs;
      attrs = removeAttrs env [ "nativeBuildInputs" ];
    };

  # callPackage with .override, for functions that return a derivation.
  callPackage =
    f: args:
    let
      function = if builtins.isFunction f then f else import f;
      result = function (builtins.intersectAttrs (builtins.functionArgs function) pkgs // args);
    in
    result // { override = more: callPackage function (args // more); };

  # A package of a feature, with the programs that it would have. Its existence in
  # nixpkgs is our belief; names were compared with nixpkgs' pkgs/by-name.
  package =
    name: programs:
    derive {
      inherit name;
      script = ''
        mkdir -p $out/bin
        for p in ${toString programs}; do printf '#!/bin/sh\n' > $out/bin/$p; chmod +x $out/bin/$p; done
      '';
    };
  unfree = name: programs: if config.allowUnfree or false then package name programs else throw "${name} is not free software, and config.allowUnfree is not set";
  pythonPackages = builtins.listToAttrs (
    map (n: lib.nameValuePair n (package n [ ])) [
      "torch"
      "transformers"
      "jupyterlab"
    ]
  );

  buildGoModule =
    {
      pname,
      version,
      src,
      vendorHash,
      env,
      ldflags,
      meta,
    }:
    let
      go = ''
        export HOME=$PWD/home GOTOOLCHAIN=local GOFLAGS=-trimpath GOOS=linux GOARCH=${goarch} GOCACHE=${host.gocache} GOPATH=$PWD/go
        mkdir -p home
        cp -r ${src} source && chmod -R u+w source && cd source
      '';
      goModules = derive {
        name = "${pname}-${version}-go-modules";
        script = go + ''
          export GOPROXY=${host.goproxy} GOSUMDB=off
          go mod vendor
          cp -r vendor $out
        '';
        attrs = {
          outputHashMode = "recursive";
          outputHashAlgo = "sha256";
          outputHash = vendorHash;
        };
      };
    in
    derive {
      name = "${pname}-${version}";
      script = go + ''
        cp -r ${goModules} vendor && chmod -R u+w vendor
        export GOPROXY=off GOFLAGS="-mod=vendor -trimpath"
        go build -buildvcs=false -ldflags ${lib.escapeShellArg (builtins.concatStringsSep " " ldflags)} -o $out/bin/ ./cmd/...
      ''
      # The real builder tests every package. Here the whole suite has run already;
      # what is run again are the packages that read files of the source set.
      + lib.optionalString (system == host.system) ''
        go test ./schema/catalog ./schema/compose ./image ./nix/...
      '';
      attrs = env;
    }
    // {
      inherit
        pname
        version
        meta
        goModules
        ;
    };

  pkgs = {
    inherit lib callPackage runCommand buildGoModule pkgs;
    stdenv.hostPlatform.system = system;
    writeText =
      name: text:
      builtins.toFile name (builtins.unsafeDiscardStringContext text);
    mkShell = { packages }: derive { name = "shell"; script = "mkdir $out"; inputs = packages; };

    dockerTools = {
      fakeNss = derive {
        name = "fake-nss";
        script = "mkdir -p $out/etc && echo root:x:0:0::/:/bin/false > $out/etc/passwd";
      };
      # Not a docker archive: the root file system as a directory, and the arguments.
      buildLayeredImage =
        {
          name,
          tag,
          contents,
          config,
          extraCommands,
          passthru,
        }:
        derive {
          name = "${name}-${tag}";
          script = ''
            mkdir -p $out/root && cd $out/root
            for c in ${toString contents}; do cp -rsf --no-preserve=mode $c/. .; done
            chmod -R u+w .
            ${extraCommands}
            cp ${pkgs.writeText "config.json" (builtins.toJSON config)} $out/config.json
          '';
        }
        // passthru
        // {
          inherit passthru;
          imageArgs = {
            inherit name tag config;
            contents = map (c: c.name) contents;
          };
        };
    };

    python3 = package "python3" [ "python3" ] // {
      withPackages =
        f:
        derive {
          name = "python3-env";
          script = ''
            mkdir -p $out/bin
            printf '#!/bin/sh\n' > $out/bin/python3
            echo ${toString (map (p: p.name) (f pythonPackages))} > $out/packages
          '';
        };
    };
    playwright-driver.browsers = package "playwright-browsers" [ ];
    claude-code = unfree "claude-code" [ "claude" ];
    cudaPackages = {
      cudatoolkit = unfree "cudatoolkit" [ "nvcc" ];
      cuda_cudart = unfree "cuda_cudart" [ ];
      libcublas = unfree "libcublas" [ ];
    };
  }
  // builtins.mapAttrs package {
    cacert = [ ];
    go = [ "go" ];
    go-tools = [ "staticcheck" ];
    gnumake = [ "make" ];
    nixfmt-tree = [ "treefmt" ];
    podman = [ "podman" ];
    prometheus = [ "promtool" ];
    runc = [ "runc" ];
    shellcheck = [ "shellcheck" ];

    agent-browser = [ "agent-browser" ];
    blender = [ "blender" ];
    cargo = [ "cargo" ];
    code-server = [ "code-server" ];
    codex = [ "codex" ];
    ffmpeg = [ "ffmpeg" ];
    gemini-cli = [ "gemini" ];
    i3 = [ "i3" ];
    imagemagick = [ "magick" ];
    mermaid-cli = [ "mmdc" ];
    nodejs = [ "node" ];
    nostr-rs-relay = [ "nostr-rs-relay" ];
    qgis = [ "qgis_process" ];
    rustc = [ "rustc" ];
    texliveMedium = [ "pdflatex" ];
    tigervnc = [ "Xvnc" ];
  };
in
pkgs
