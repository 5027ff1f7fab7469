# The functions of nixpkgs' lib that our Nix code uses, with nixpkgs' meaning.
let
  inherit (builtins)
    all
    any
    concatLists
    concatStringsSep
    elem
    filter
    fromJSON
    head
    isString
    listToAttrs
    map
    match
    readFile
    replaceStrings
    split
    stringLength
    substring
    tail
    ;

  # A file set is a predicate on absolute path names.
  fileset =
    let
      toSet =
        x:
        if builtins.isAttrs x then
          x
        else if !builtins.pathExists x then
          throw "lib.fileset: ${toString x} does not exist"
        else
          { has = name: name == toString x || hasPrefix "${toString x}/" name; };
    in
    {
      unions = list: { has = name: any (s: (toSet s).has name) list; };
      difference = a: b: { has = name: (toSet a).has name && !((toSet b).has name); };
      toSource =
        { root, fileset }:
        builtins.path {
          path = root;
          name = "source";
          filter = name: _: (toSet fileset).has name;
        };
    };

  hasPrefix = prefix: text: substring 0 (stringLength prefix) text == prefix;
  option =
    {
      type,
      description,
      default ? null,
      defaultText ? null,
    }@args:
    args // { _type = "option"; };
in
rec {
  inherit fileset hasPrefix;

  genAttrs = names: f: listToAttrs (map (n: nameValuePair n (f n)) names);
  nameValuePair = name: value: { inherit name value; };
  mapAttrsToList = f: set: map (n: f n set.${n}) (builtins.attrNames set);
  filterAttrs =
    keep: set: listToAttrs (map (n: nameValuePair n set.${n}) (filter (n: keep n set.${n}) (builtins.attrNames set)));
  attrByPath =
    path: default: set:
    if path == [ ] then
      set
    else if builtins.isAttrs set && set ? ${head path} then
      attrByPath (tail path) default set.${head path}
    else
      default;

  optional = yes: x: if yes then [ x ] else [ ];
  optionals = yes: list: if yes then list else [ ];
  optionalAttrs = yes: set: if yes then set else { };
  optionalString = yes: text: if yes then text else "";
  boolToString = b: if b then "true" else "false";
  unique = builtins.foldl' (have: x: if elem x have then have else have ++ [ x ]) [ ];

  splitString = sep: text: filter isString (split (escapeRegex sep) text);
  escapeRegex =
    text: replaceStrings [ "\\" "^" "$" "." "+" "*" "?" "|" "(" ")" "[" "{" ] [ "\\\\" "\\^" "\\$" "\\." "\\+" "\\*" "\\?" "\\|" "\\(" "\\)" "\\[" "\\{" ] text;
  escapeShellArg = text: "'${replaceStrings [ "'" ] [ "'\\''" ] text}'";
  escapeShellArgs = list: concatStringsSep " " (map escapeShellArg list);
  concatStringsSep = builtins.concatStringsSep;
  concatMapStrings = f: list: concatStringsSep "" (map f list);
  concatMapStringsSep = sep: f: list: concatStringsSep sep (map f list);

  fileContents = path: head (match "(.*[^\n]|)\n*" (readFile path));
  importJSON = path: fromJSON (readFile path);
  assertMsg = yes: message: if yes then true else throw message;

  licenses.mpl20.spdxId = "MPL-2.0";
  platforms.linux = [
    "x86_64-linux"
    "aarch64-linux"
  ];

  # Of the module system only what a module writes down: CI calls nix/module.nix
  # itself and looks at the result.
  mkOption = option;
  mkEnableOption =
    text:
    option {
      type = types.bool;
      description = "Whether to enable ${text}.";
      default = false;
    };
  mkIf = condition: content: if condition then content else { };
  types = {
    bool = "bool";
    path = "path";
    str = "string";
    package = "package";
    nullOr = t: "null or ${t}";
    listOf = t: "list of ${t}";
    attrsOf = t: "attribute set of ${t}";
  };
}
