package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

func newIdentity(c *cli) *cobra.Command {
	return group("identity", "Show and change the keys of the box",
		newIdentityShow(c), newIdentityRotate(c), newIdentityExport(c), newIdentityRekey(c))
}

// identityReport is what the box reports about itself.
type identityReport struct {
	AgentID   string  `json:"agent_id"`
	CreatedAt string  `json:"created_at"`
	RotatedAt *string `json:"rotated_at"`
	PublicKey string  `json:"public_key_hex"`
	Npub      string  `json:"npub"`
	DID       string  `json:"did"`

	FormerKeyIn     []string `json:"former_key_in"`
	FormerKeyPartly bool     `json:"former_key_partly"`
}

func (c *cli) showIdentity(raw json.RawMessage, err error) error {
	return show(c, raw, err, func(i identityReport) {
		rotated := "never"
		if i.RotatedAt != nil {
			rotated = *i.RotatedAt
		}
		for _, row := range [][2]string{
			{"agent id", i.AgentID}, {"npub", i.Npub}, {"public key", i.PublicKey}, {"did", i.DID}, {"created", i.CreatedAt}, {"rotated", rotated},
		} {
			fmt.Fprintf(c.stdout, "%-11s %s\n", row[0], printable(row[1]))
		}
		if len(i.FormerKeyIn) > 0 {
			fmt.Fprintf(c.stderr, "agentctl: these access lists below the directory of the pods still name the former key; replace it by the new one:\n")
		}
		for _, list := range i.FormerKeyIn {
			fmt.Fprintf(c.stderr, "  %s\n", printable(list))
		}
		if i.FormerKeyPartly {
			fmt.Fprintf(c.stderr, "agentctl: not all access lists of the pods could be read; others may name the former key too\n")
		}
	})
}

func newIdentityShow(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "Show the public key, the npub and the DID", Args: noArgs, ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.showIdentity(c.ask(cmd.Context(), http.MethodGet, "/v1/identity", nil, nil))
		},
	}
}

func newIdentityRotate(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rotate", Short: "Replace the private key; the old one goes to the archive",
		Long: `Replace the private key; the old one goes to the archive. Standard error names
the access lists of local pods that still have the former key.`, Args: noArgs, ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.showIdentity(c.ask(cmd.Context(), http.MethodPost, "/v1/identity/rotate", nil, nil))
		},
	}
}

func newIdentityExport(c *cli) *cobra.Command {
	var sure bool
	cmd := &cobra.Command{
		Use: "export --reveal", Short: "Print the private key (nsec), over the control socket alone", Args: noArgs, ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !sure {
				return usageError("identity export prints the private key: add --reveal, and send the output to a file that only you can read")
			}
			raw, err := c.ask(cmd.Context(), http.MethodPost, "/v1/identity/export", nil, nil)
			return show(c, raw, err, func(k struct{ Npub, Nsec string }) { fmt.Fprintln(c.stdout, printable(k.Nsec)) })
		},
	}
	cmd.Flags().BoolVar(&sure, "reveal", false, "print the private key")
	return cmd
}

func newIdentityRekey(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rekey", Short: "Make a new management key and encrypt the private key with it", Args: noArgs, ValidArgsFunction: noFiles,
		Long: `Make a new management key and encrypt the private key with it.

The new key is in $WORKSPACE/profiles/default/mgmt-key and in force at once; the
old one is refused. A key of the variable MANAGEMENT_API_KEY is not changed:
change the variable, and start the box once with the former key in
MANAGEMENT_API_KEY_PREVIOUS.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := c.ask(cmd.Context(), http.MethodPost, "/v1/identity/rekey", nil, nil)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.stderr, "the new management key is in force, and the event ManagementKeyRotated names its file; restart the programs that were given the old key")
			return nil
		},
	}
}
