package schema

import "testing"

func TestSecretNames(t *testing.T) {
	for name, want := range map[string]bool{
		"MANAGEMENT_API_KEY": true, "GITHUB_TOKEN": true, "AGENT_NSEC": true, "PG_DSN": true, "SSL_PRIVATE_KEY": true,
		"AWS_SECRET_ACCESS_KEY": true, "AWS_SESSION_TOKEN": true, "STRIPE_API_KEYS": true, "SECRET_KEY_BASE": true,
		"PGPASSWORD": true, "PASSWORD": true, "SECRET": true, "TOKEN": true, "API_KEY": true, "APIKEY": true, "KEY": true,
		"X_PASSWD": true, "X_PASSPHRASE": true, "X_CREDENTIALS": true, "DB_PASS": true, "SSHPASS": true, "MYSQL_PWD": true,
		"GITHUB_PAT": true, "github_token": true, "githubToken": true, "Db_Password": true, "X-Api-Key": true,
		"AZURE_STORAGE_CONNECTION_STRING": true, "app.secret": true,

		"PATH": false, "HOME": false, "PWD": false, "OLDPWD": false, "SSH_AUTH_SOCK": false, "KEYBOARD": false, "MONKEY": false,
		"TOKENIZERS_PARALLELISM": false, "MAX_TOKENS": false, "TOKENIZER": false, "SECRETARY": false, "COMPASS": false,
		"GIT_ASKPASS": false, "NO_PROXY_BYPASS": false, "AWS_ACCESS_KEY_ID": false, "SSH_PUBLIC_KEY": false, "publicKey": false,
		"DB_PASSWORD_FILE": false, "PGPASSFILE": false, "MANAGEMENT_API_PORT": false, "LS_COLORS": false, "XPAT": false, "": false,
	} {
		if got := SecretName(name); got != want {
			t.Errorf("SecretName(%q) = %v", name, got)
		}
	}
}

func TestSecretsOfAManifest(t *testing.T) {
	m, _, _ := load(t, "[providers.x]\nenabled = false\nenv_var = 'MY_LOGIN'\n[providers.y]\nenabled = false\nenv_var = ''\n"+
		"[slots.events]\ntoken_env = 'MESH'\n[supervisor.log.forward.loki]\ntype = 'loki'\nurl = 'https://loki.example.org'\ntoken_env = 'LOKI'\n"+
		"[api.keys.oncall]\nrole = 'viewer'\nenv = 'ONCALL'")
	for name, want := range map[string]bool{"MY_LOGIN": true, "MESH": true, "LOKI": true, "ONCALL": true, "PGPASSWORD": true, "my_login": false, "PATH": false, "": false} {
		if got := m.IsSecret(name); got != want {
			t.Errorf("IsSecret(%q) = %v", name, got)
		}
	}
}

// A token in the place of a variable's name is not shown, even if it has the form of a name.
func TestShownVariables(t *testing.T) {
	for name, want := range map[string]bool{
		"GITHUB_TOKEN": true, "http_proxy": true, "Path": true, "the_token_of_my_provider": true, "KEY_01234567890123456789": true,
		"ghp_16C7e42F292c6912E7710c838347Ae178B4a": false, "sk_live_51H8abcdefghijklmnop": false, "sk-ant-x": false, "": false,
		"hf_abcdefghijklMNOPQRSTUVWXYZ": false,
	} {
		if ShownVariable(name) != want {
			t.Errorf("%q is shown: %v", name, !want)
		}
	}
}
