package bootstrap

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
	"github.com/dreamlab-ai/agentinit/schema"
)

// APIKey is one key of [api.keys].
type APIKey struct {
	Name, Role string
	Key        Secret
}

// APIKeys reads the keys of the manifest, in the order of their names. If a key cannot be read, the
// error is a *Failure with ExitPrepare. Otherwise the holder of that key would be locked out
// without a message.
func APIKeys(m *schema.Manifest, getenv func(string) string) ([]APIKey, error) {
	var keys []APIKey
	for _, name := range slices.Sorted(maps.Keys(m.API.Keys)) {
		k := m.API.Keys[name]
		text, err := readAPIKey(k, getenv)
		if err != nil {
			return nil, fail(ExitPrepare, err, "cannot use api.keys.%s", name)
		}
		keys = append(keys, APIKey{Name: name, Role: k.Role, Key: newSecret(text)})
	}
	return keys, nil
}

// readAPIKey reads one key. An error about a variable names it and says what to do.
func readAPIKey(k schema.APIKey, getenv func(string) string) (string, error) {
	if k.File != "" {
		text, err := readSecretFile(k.File)
		if path, ok := errors.AsType[*os.PathError](err); ok {
			// The path in err may be a directory above the file.
			return "", fmt.Errorf("the file %s: %w; mount it, readable for agentinit, or correct file in the manifest", k.File, path.Err)
		}
		if err != nil {
			return "", err
		}
		if err := checkKey(text); err != nil {
			return "", fmt.Errorf("the file %s %w", k.File, err)
		}
		return text, nil
	}
	variable := "the variable " + k.Env
	if !schema.ShownVariable(k.Env) { // it may be the key itself
		variable = "the variable that env names"
	}
	text := strings.TrimSpace(getenv(k.Env))
	if text == "" {
		return "", fmt.Errorf("%s is not set; set it in the container's environment", variable)
	}
	if err := checkKey(text); err != nil {
		return "", fmt.Errorf("%s %w; set another key in the container's environment", variable, err)
	}
	return text, nil
}

// readSecretFile reads a file that an engine or an operator has provided. A file that another user
// could replace is refused, because that user could choose the key.
func readSecretFile(path string) (string, error) {
	text, weak, err := safeopen.ReadPrivate(path, maxKey)
	if err != nil {
		return "", err
	}
	if weak != nil {
		return "", weak
	}
	return strings.TrimSpace(string(text)), nil
}
