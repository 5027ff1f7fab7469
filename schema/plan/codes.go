package plan

import "github.com/dreamlab-ai/agentinit/schema"

// Code documents one code of this package's findings, for `config explain` and the manual.
type Code struct {
	Code     string
	Severity schema.Severity
	Doc      string
}

// UnknownAccount is the code of a user or group that the box does not have.
const UnknownAccount = "E140"

// Codes lists every finding of Resolve, and the findings of bootstrap about the accounts of the
// machine. They only concern sections that the older manifest does not have.
var Codes = []Code{
	{"E120", schema.Error, "Program tables ask for environment variables that are not set and have no default. One finding lists all of them with the places that ask. Set them, or write ${X:-default}."},
	{"E121", schema.Error, "A text in a program table has a \"${\" that is not closed or a form other than ${X}, ${X:-default} and ${X:?message}. A literal dollar before a brace is written $${."},
	{"E122", schema.Error, "The needs of programs form a circle, so none of them could ever start. The finding prints the circle: remove one of its needs."},
	{"E123", schema.Error, "needs names a program that neither the manifest nor a feature that is on declares. Correct the name, or declare the program."},
	{"E124", schema.Error, "needs names a program that is disabled, or whose `when` or feature gate does not hold; the dependent could never start. Enable it, or remove the need."},
	{"E125", schema.Error, "A program of the manifest has no command, and the feature catalogue has no program of this name that is on. Write a command."},
	{"E126", schema.Error, "when must name a boolean of the manifest, such as \"desktop.enabled\"."},
	{"E127", schema.Error, "An env_file is not lines of NAME=value, or cannot be read by the agentinit that boots the box. A leading \"-\" before the path makes the file optional. If a file holds a value alone, as the secrets of podman and Kubernetes do, let a shell read it when the program starts: command = [\"sh\", \"-c\", 'API_KEY=\"$(cat /run/secrets/api_key)\" exec app']."},
	{"W127", schema.Warning, "An env_file cannot be read on this machine, which is not the box. The variables of that program are not checked. At boot the same is the error E127."},
	{"E128", schema.Error, "A command is empty, begins with an empty word, or holds a NUL byte after its variables are expanded."},
	{"E129", schema.Error, "bootstrap, management-api and bootstrap-seal were programs of the older runtime; agentinit itself does their work, so no program can have their name. Remove the table or rename the program."},
	{"E130", schema.Error, "A program is written with required = true and enabled = false: the box could never be ready. Remove one of the two."},
	{"E131", schema.Error, "A program is required and has autostart = false: boot would wait for it in vain. Remove one of the two."},
	{"E132", schema.Error, "The built-in catalogue contradicts the schema. This is a defect of agentinit."},
	{UnknownAccount, schema.Error, "user, group or groups of a program names an account that neither /etc/passwd nor /etc/group of the box has. It is reported at boot and by an apply. A number needs no entry."},
	{"W140", schema.Warning, "user, group or groups of a program names an account that this machine, which is not the box, does not have. At boot the same is the error E140. Or supervisor.socket_group, or a key of [supervisor.agents] or of a template, names such an account; then the boot ends with status 64."},
	{"E141", schema.Error, "The programs and their instances together are more than 20,000, or their needs, counted for each pair of instances, more than 200,000. A few kilobytes of text could otherwise ask for more memory than the machine has."},
	{"E142", schema.Error, "After its variables are expanded, a probe of ready or health is no address that can be asked: http needs a URL with http:// or https://, tcp and grpc need host and port."},
	{"E143", schema.Error, "The directory of a program does not exist in the box, and no other program could make it in time: the program is of the first wave and has no needs. Make it in the image, mount it, or let a oneshot that the program needs make it. The hooks of the program cannot: they run in this directory. It is reported at boot and by an apply."},
	{"W143", schema.Warning, "The directory of a program does not exist on this machine, which is not the box. At boot the same is the error E143."},
	{"W144", schema.Warning, "The ca_file of a log collector ([supervisor.log.forward.NAME]) does not exist on this machine. A box that lacks it does not start. Mount or create the file, or leave ca_file out to trust the certificates of the system."},
	{"W120", schema.Warning, "Programs stop one after the other when one needs the other or their priorities differ. A oneshot is over when a program runs that needs it. The stops of such a chain, defaults included, may take longer than [supervisor].stop_grace, less drain and what is kept for KILL (two seconds, or a fifth of a shorter stop_grace), allows. At shutdown every wait is shortened in proportion. Write shorter waits in stop, or a longer stop_grace; the container engine must grant more than that. If the programs end soon after their TERM, leave it."},
	{"W121", schema.Warning, "A program declares readiness with neither a deadline nor a start_timeout: if it never becomes ready, all that need it wait without end. Write a deadline in ready, or a start_timeout."},
	{"W122", schema.Warning, "needs asks for the completion of a program that is restarted whenever it ends (restart = \"always\"). Write type = \"oneshot\"."},
	{"W123", schema.Warning, "A command, a hook or exec of a probe holds a shell operator as a word of its own. No shell runs it; write [\"sh\", \"-c\", \"…\"] if one is wanted."},
	{"W124", schema.Warning, "A required program that is FATAL before the seal ends the box with status 67. The program that the finding names becomes FATAL only after [bootstrap].seal_timeout, or never: if it cannot run, the box stays unsealed instead. If the manifest has no seal_timeout, agentinit takes one that is long enough. Leave it out, or lower restart_limit or backoff of the program."},
	{"W125", schema.Warning, "A text of a program holds %(NAME)s, which only supervisord replaces. Write ${X} for %(ENV_X)s, ${INSTANCE} for %(process_num)d, and the name, path or number itself for the others, such as %(program_name)s, %(here)s and %(numprocs)d."},
	{"W126", schema.Warning, "programs of a log collector ([supervisor.log.forward.NAME]) names a program that the manifest does not have, or has a glob that matches none. Lines of such a program never come. Correct the name."},
	{"W128", schema.Warning, "start_timeout is shorter than start_seconds, so that the program is never RUNNING and each start fails; or it is shorter than the deadline of ready, so that a start fails before the deadline. Write a longer start_timeout, or 0 for no limit."},
}

func severityOf(code string) schema.Severity {
	if code[0] == 'W' {
		return schema.Warning
	}
	return schema.Error
}
