package wayback

import (
	"slices"
	"strings"
)

// Groups of the table, and of findings.
const (
	GroupRedirect = "git, before anything else" // sends the host's git to other settings and hooks
	GroupGit      = "git directory"
	GroupKey      = "git config key"
	GroupName     = "name"
	GroupNamed    = "named by git's configuration, by a link or by the policy"
	GroupMode     = "any other file"
)

// Entry is a row of the table of what the host would later execute, and why it
// would. What a person runs knowingly is not in it: Makefile, package.json,
// Dockerfile, build and test files, and the configuration of linters that is
// code. It is read before it is run, like the project's other code.
type Entry struct {
	Group string
	// Pattern is a path below a git directory, a key (a * stands for any
	// subsection, and at the end for the rest), or a name at any depth. A
	// slash at its end means everything below.
	Pattern string
	Reason  string
	// Value says which values count, if not all of them do.
	Value string
}

// Table returns every row, in the order of the documentation.
func Table() []Entry { return slices.Clone(table) }

var table = []Entry{
	{Group: GroupRedirect, Pattern: ".git", Reason: "git starts from it: a new one makes a repository of its directory, and one that is a file or a link sends git elsewhere"},
	{Group: GroupRedirect, Pattern: "commondir", Reason: "git takes settings and hooks from the directory that it names"},
	{Group: GroupRedirect, Pattern: "gitdir", Reason: "git finds the files of a worktree by it"},
	{Group: GroupRedirect, Pattern: "config.worktree", Reason: "git reads it as settings where extensions.worktreeConfig is on"},
	{Group: GroupRedirect, Pattern: "HEAD, objects, refs", Reason: "a directory of this shape, or with HEAD and commondir, is a repository under any name: git obeys its settings for whoever enters it"},

	{Group: GroupGit, Pattern: "hooks/", Reason: "git runs its hooks on commit, checkout, merge, push and more"},
	{Group: GroupGit, Pattern: "config", Reason: "git reads it as settings, some of which are commands"},
	{Group: GroupGit, Pattern: "info/attributes", Reason: "it names the filter, diff and merge drivers that git runs"},
	{Group: GroupGit, Pattern: "rebase-merge/", Reason: "git rebase --continue runs its exec lines, and the program of the merge strategy that it names"},
	{Group: GroupGit, Pattern: "rebase-apply/", Reason: "git rebase and git am --continue take options from it"},
	{Group: GroupGit, Pattern: "sequencer/", Reason: "git cherry-pick and git revert --continue run the program of the merge strategy that it names"},
	{Group: GroupGit, Pattern: "objects/info/alternates", Reason: "git takes objects from the directories that it names, and git fetch and push start git in them"},
	{Group: GroupGit, Pattern: "remotes/", Reason: "git takes the addresses of remotes from it"},
	{Group: GroupGit, Pattern: "branches/", Reason: "git takes the addresses of remotes from it"},
	{Group: GroupGit, Pattern: "lazygit.yml", Reason: "lazygit runs the commands that it names"},

	{Group: GroupKey, Pattern: "core.hooksPath", Reason: "git runs hooks from there"},
	{Group: GroupKey, Pattern: "core.fsmonitor", Reason: "git status runs it"},
	{Group: GroupKey, Pattern: "core.sshCommand", Reason: "git fetch and push run it"},
	{Group: GroupKey, Pattern: "core.editor", Reason: "git commit runs it"},
	{Group: GroupKey, Pattern: "core.pager", Reason: "git log and diff run it"},
	{Group: GroupKey, Pattern: "core.gitProxy", Reason: "git fetch runs it"},
	{Group: GroupKey, Pattern: "core.askPass", Reason: "git runs it to ask for passwords"},
	{Group: GroupKey, Pattern: "core.alternateRefsCommand", Reason: "git fetch runs it"},
	{Group: GroupKey, Pattern: "core.attributesFile", Reason: "it names the drivers that git runs"},
	{Group: GroupKey, Pattern: "core.worktree", Reason: "git checkout writes its files there"},
	{Group: GroupKey, Pattern: "sequence.editor", Reason: "git rebase -i runs it"},
	{Group: GroupKey, Pattern: "hook.*", Reason: "newer versions of git run hooks that the configuration holds"},
	{Group: GroupKey, Pattern: "filter.*.clean", Reason: "git add and status run it on files that attributes choose"},
	{Group: GroupKey, Pattern: "filter.*.smudge", Reason: "git checkout runs it on files that attributes choose"},
	{Group: GroupKey, Pattern: "filter.*.process", Reason: "git add and checkout run it on files that attributes choose"},
	{Group: GroupKey, Pattern: "diff.external", Reason: "git diff runs it"},
	{Group: GroupKey, Pattern: "diff.tool", Reason: "git difftool reads a script of that name, which may be a path"},
	{Group: GroupKey, Pattern: "diff.guitool", Reason: "git difftool reads a script of that name, which may be a path"},
	{Group: GroupKey, Pattern: "merge.tool", Reason: "git mergetool and difftool read a script of that name, which may be a path"},
	{Group: GroupKey, Pattern: "merge.guitool", Reason: "git mergetool and difftool read a script of that name, which may be a path"},
	{Group: GroupKey, Pattern: "diff.*.command", Reason: "git diff runs it on files that attributes choose"},
	{Group: GroupKey, Pattern: "diff.*.textconv", Reason: "git diff, log and blame run it on files that attributes choose"},
	{Group: GroupKey, Pattern: "merge.*.driver", Reason: "git merge and rebase run it on files that attributes choose"},
	{Group: GroupKey, Pattern: "mergetool.*.cmd", Reason: "git mergetool runs it"},
	{Group: GroupKey, Pattern: "mergetool.*.path", Reason: "git mergetool runs it"},
	{Group: GroupKey, Pattern: "difftool.*.cmd", Reason: "git difftool runs it"},
	{Group: GroupKey, Pattern: "difftool.*.path", Reason: "git difftool runs it"},
	{Group: GroupKey, Pattern: "include.*", Reason: "git reads that file as settings too"},
	{Group: GroupKey, Pattern: "includeIf.*", Reason: "git reads that file as settings too"},
	{Group: GroupKey, Pattern: "alias.*", Reason: "git runs it in place of a command's name; even without ! it can carry options that execute"},
	{Group: GroupKey, Pattern: "credential.helper", Reason: "git runs it, and gives it passwords"},
	{Group: GroupKey, Pattern: "credential.*.helper", Reason: "git runs it, and gives it passwords"},
	{Group: GroupKey, Pattern: "gpg.program", Reason: "git runs it to sign and to verify"},
	{Group: GroupKey, Pattern: "gpg.*.program", Reason: "git runs it to sign and to verify"},
	{Group: GroupKey, Pattern: "gpg.ssh.defaultKeyCommand", Reason: "git runs it to sign"},
	{Group: GroupKey, Pattern: "remote.*.uploadpack", Reason: "git fetch runs it, on this machine for a local remote"},
	{Group: GroupKey, Pattern: "remote.*.receivepack", Reason: "git push runs it, on this machine for a local remote"},
	{Group: GroupKey, Pattern: "remote.*.vcs", Reason: "git runs the remote helper of that name"},
	{Group: GroupKey, Pattern: "remote.*.url", Reason: "git fetches from there and pushes to it; of transport::address it runs the helper"},
	{Group: GroupKey, Pattern: "remote.*.pushurl", Reason: "git pushes to it; of transport::address it runs the helper"},
	{Group: GroupKey, Pattern: "remote.pushDefault", Value: "an address", Reason: "git pushes to it; of transport::address it runs the helper"},
	{Group: GroupKey, Pattern: "branch.*.remote", Value: "an address", Reason: "git pulls from there and pushes to it; of transport::address it runs the helper"},
	{Group: GroupKey, Pattern: "branch.*.pushRemote", Value: "an address", Reason: "git pushes to it; of transport::address it runs the helper"},
	{Group: GroupKey, Pattern: "remote.*.promisor", Reason: "mere reading fetches from that remote"},
	{Group: GroupKey, Pattern: "remote.*.proxy", Reason: "what is fetched and pushed goes through it"},
	{Group: GroupKey, Pattern: "http.proxy", Reason: "what is fetched and pushed goes through it"},
	{Group: GroupKey, Pattern: "http.*.proxy", Reason: "what is fetched and pushed goes through it"},
	{Group: GroupKey, Pattern: "http.sslVerify", Reason: "git then sends passwords to whoever answers"},
	{Group: GroupKey, Pattern: "http.*.sslVerify", Reason: "git then sends passwords to whoever answers"},
	{Group: GroupKey, Pattern: "url.*.insteadOf", Reason: "it rewrites the address of remotes, and can choose a helper that executes"},
	{Group: GroupKey, Pattern: "url.*.pushInsteadOf", Reason: "it rewrites the address of remotes, and can choose a helper that executes"},
	{Group: GroupKey, Pattern: "protocol.allow", Reason: "it allows remote helpers that execute"},
	{Group: GroupKey, Pattern: "protocol.*.allow", Reason: "it allows remote helpers that execute"},
	{Group: GroupKey, Pattern: "uploadpack.packObjectsHook", Reason: "git runs it to serve a fetch"},
	{Group: GroupKey, Pattern: "submodule.*.update", Value: "!command", Reason: "git submodule update runs it"},
	{Group: GroupKey, Pattern: "gc.recentObjectsHook", Reason: "git gc runs it"},
	{Group: GroupKey, Pattern: "web.browser", Reason: "git help and instaweb run it"},
	{Group: GroupKey, Pattern: "help.browser", Reason: "git help runs it"},
	{Group: GroupKey, Pattern: "browser.*", Reason: "git help and instaweb run it"},
	{Group: GroupKey, Pattern: "man.*", Reason: "git help runs it"},
	{Group: GroupKey, Pattern: "instaweb.*", Reason: "git instaweb runs it"},
	{Group: GroupKey, Pattern: "guitool.*", Reason: "git gui runs it"},
	{Group: GroupKey, Pattern: "pager.*", Reason: "that command runs it for its output"},
	{Group: GroupKey, Pattern: "interactive.diffFilter", Reason: "git add -p runs it"},
	{Group: GroupKey, Pattern: "trailer.*.command", Reason: "git commit --trailer and interpret-trailers run it"},
	{Group: GroupKey, Pattern: "trailer.*.cmd", Reason: "git commit --trailer and interpret-trailers run it"},
	{Group: GroupKey, Pattern: "tar.*.command", Reason: "git archive runs it"},
	{Group: GroupKey, Pattern: "init.templateDir", Reason: "git copies hooks from there into new repositories"},
	{Group: GroupKey, Pattern: "extensions.worktreeConfig", Reason: "it turns config.worktree on"},
	{Group: GroupKey, Pattern: "extensions.partialClone", Reason: "mere reading fetches from that remote"},
	{Group: GroupKey, Pattern: "sendemail.*", Reason: "git send-email runs some of its settings, and gives mail and passwords to others"},
	{Group: GroupKey, Pattern: "imap.tunnel", Reason: "git imap-send runs it"},
	{Group: GroupKey, Pattern: "svn.*", Reason: "git svn runs its authors-prog"},
	{Group: GroupKey, Pattern: "lfs.*", Reason: "Git LFS runs its transfer agents and extensions, and takes its server from it"},
	{Group: GroupKey, Pattern: "annex.*", Reason: "git-annex runs its commands"},

	{Group: GroupName, Pattern: ".gitmodules", Value: "update = !command", Reason: "git submodule update can run it"},
	{Group: GroupName, Pattern: ".gitattributes", Value: "filter, diff and merge drivers", Reason: "it chooses the files on which git runs drivers"},
	{Group: GroupName, Pattern: ".lfsconfig", Reason: "Git LFS takes its server from it"},
	{Group: GroupName, Pattern: ".gitconfig", Reason: "git reads it as settings, where its directory is a home or is linked from one"},

	{Group: GroupName, Pattern: ".envrc", Reason: "direnv runs it on entering"},
	{Group: GroupName, Pattern: ".envrc.*", Reason: "an .envrc usually sources it"},
	{Group: GroupName, Pattern: ".env", Reason: "shell plugins source it on entering, and tools take their environment from it"},
	{Group: GroupName, Pattern: ".env.local", Reason: "an .envrc and shell plugins usually load it with .env"},
	{Group: GroupName, Pattern: ".direnv/", Reason: "direnv runs what it kept there, and puts programs there before all others"},
	{Group: GroupName, Pattern: ".venv/bin/", Reason: "shells, editors and tools run the programs and the activate script in it"},
	{Group: GroupName, Pattern: "venv/bin/", Reason: "shells, editors and tools run the programs and the activate script in it"},
	{Group: GroupName, Pattern: ".autoenv.zsh", Reason: "autoenv runs it on entering"},
	{Group: GroupName, Pattern: ".mise.toml", Reason: "mise sets the environment, runs hooks and chooses programs by it on entering"},
	{Group: GroupName, Pattern: ".mise.*.toml", Reason: "mise sets the environment, runs hooks and chooses programs by it on entering"},
	{Group: GroupName, Pattern: "mise.toml", Reason: "mise sets the environment, runs hooks and chooses programs by it on entering"},
	{Group: GroupName, Pattern: "mise.*.toml", Reason: "mise sets the environment, runs hooks and chooses programs by it on entering"},
	{Group: GroupName, Pattern: ".mise/", Reason: "mise runs its tasks and reads its settings"},
	{Group: GroupName, Pattern: "mise/config.toml", Reason: "mise sets the environment, runs hooks and chooses programs by it on entering"},
	{Group: GroupName, Pattern: ".config/mise/", Reason: "mise sets the environment, runs hooks and chooses programs by it on entering"},
	{Group: GroupName, Pattern: ".config/mise.toml", Reason: "mise sets the environment, runs hooks and chooses programs by it on entering"},
	{Group: GroupName, Pattern: ".tool-versions", Reason: "asdf and mise choose programs by it, a path among them, on entering"},
	{Group: GroupName, Pattern: ".hg/hgrc", Reason: "Mercurial runs its hooks and extensions"},
	{Group: GroupName, Pattern: ".jj/repo/config.toml", Reason: "Jujutsu runs tools that it names"},
	{Group: GroupName, Pattern: ".sl/config", Reason: "Sapling runs its hooks and extensions"},
	{Group: GroupName, Pattern: "_darcs/prefs/", Reason: "darcs runs hooks and tests that it names"},
	{Group: GroupName, Pattern: ".pijul/config", Reason: "Pijul runs its hooks"},
	{Group: GroupName, Pattern: ".bashrc", Reason: "a shell runs it, where its directory is a home or is linked from one"},
	{Group: GroupName, Pattern: ".bash_profile", Reason: "a shell runs it, where its directory is a home or is linked from one"},
	{Group: GroupName, Pattern: ".bash_login", Reason: "a shell runs it, where its directory is a home or is linked from one"},
	{Group: GroupName, Pattern: ".bash_logout", Reason: "a shell runs it, where its directory is a home or is linked from one"},
	{Group: GroupName, Pattern: ".bash_aliases", Reason: "a shell runs it, where its directory is a home or is linked from one"},
	{Group: GroupName, Pattern: ".profile", Reason: "a shell runs it, where its directory is a home or is linked from one"},
	{Group: GroupName, Pattern: ".zshrc", Reason: "a shell runs it, where its directory is a home or is linked from one"},
	{Group: GroupName, Pattern: ".zshenv", Reason: "a shell runs it, where its directory is a home or is linked from one"},
	{Group: GroupName, Pattern: ".zprofile", Reason: "a shell runs it, where its directory is a home or is linked from one"},
	{Group: GroupName, Pattern: ".zlogin", Reason: "a shell runs it, where its directory is a home or is linked from one"},
	{Group: GroupName, Pattern: ".zlogout", Reason: "a shell runs it, where its directory is a home or is linked from one"},
	{Group: GroupName, Pattern: ".config/fish/", Reason: "a shell runs it, where its directory is a home or is linked from one"},
	{Group: GroupName, Pattern: "*.desktop", Reason: "a file manager starts what it names, under any name and picture"},

	{Group: GroupName, Pattern: ".vscode/", Reason: "VS Code runs its tasks and obeys its settings on opening the folder"},
	{Group: GroupName, Pattern: "*.code-workspace", Reason: "VS Code runs its tasks and obeys its settings on opening it"},
	{Group: GroupName, Pattern: ".devcontainer/", Reason: "editors run its commands, initializeCommand on the host itself, and its mounts and privileges are free"},
	{Group: GroupName, Pattern: ".devcontainer.json", Reason: "editors run its commands, initializeCommand on the host itself, and its mounts and privileges are free"},
	{Group: GroupName, Pattern: ".idea/", Reason: "JetBrains editors run what it configures on opening the folder"},
	{Group: GroupName, Pattern: ".fleet/", Reason: "Fleet runs what it configures"},
	{Group: GroupName, Pattern: ".vs/", Reason: "Visual Studio runs its tasks"},
	{Group: GroupName, Pattern: ".zed/", Reason: "Zed runs the language servers and tasks that it names"},
	{Group: GroupName, Pattern: ".theia/", Reason: "Theia runs its tasks"},
	{Group: GroupName, Pattern: ".helix/", Reason: "Helix runs the language servers that it names"},
	{Group: GroupName, Pattern: ".externalToolBuilders/", Reason: "Eclipse runs its builders on opening the project"},
	{Group: GroupName, Pattern: "*.sublime-project", Reason: "Sublime Text runs language servers and build systems that it names"},
	{Group: GroupName, Pattern: ".kateproject", Reason: "Kate runs language servers and commands that it names"},
	{Group: GroupName, Pattern: ".exrc", Reason: "vi, Vim and Neovim run it where exrc is set"},
	{Group: GroupName, Pattern: ".vimrc", Reason: "Vim runs it where exrc is set"},
	{Group: GroupName, Pattern: ".lvimrc", Reason: "Vim runs it with the localvimrc plugin"},
	{Group: GroupName, Pattern: ".nvimrc", Reason: "Neovim runs it where exrc is set"},
	{Group: GroupName, Pattern: ".nvim.lua", Reason: "Neovim runs it where exrc is set"},
	{Group: GroupName, Pattern: ".vim/coc-settings.json", Reason: "coc.nvim runs the language servers that it names"},
	{Group: GroupName, Pattern: ".dir-locals.el", Reason: "Emacs evaluates it on opening a file"},
	{Group: GroupName, Pattern: ".dir-locals-2.el", Reason: "Emacs evaluates it on opening a file"},
	{Group: GroupName, Pattern: ".ycm_extra_conf.py", Reason: "YouCompleteMe runs it on opening a file"},
	{Group: GroupName, Pattern: ".luarc.json", Reason: "the Lua language server runs plugins that it names"},
	{Group: GroupName, Pattern: ".luarc.jsonc", Reason: "the Lua language server runs plugins that it names"},
	{Group: GroupName, Pattern: ".bsp/", Reason: "Scala's editors run the build server that it names on opening the folder"},
	{Group: GroupName, Pattern: "hie.yaml", Reason: "the Haskell language server runs the program that it names"},
	{Group: GroupName, Pattern: ".latexmkrc", Reason: "latexmk, and editors through it, run it"},
	{Group: GroupName, Pattern: ".lazygit.yml", Reason: "lazygit runs the commands that it names"},
	{Group: GroupName, Pattern: ".cargo/config", Reason: "cargo, and editors through it, run the wrappers, linkers and runners that it names"},
	{Group: GroupName, Pattern: ".cargo/config.toml", Reason: "cargo, and editors through it, run the wrappers, linkers and runners that it names"},
	{Group: GroupName, Pattern: "rust-toolchain", Reason: "cargo, and editors through it, run the toolchain at the path that it names"},
	{Group: GroupName, Pattern: "rust-toolchain.toml", Reason: "cargo, and editors through it, run the toolchain at the path that it names"},
	{Group: GroupName, Pattern: "Directory.Build.props", Reason: "MSBuild, and editors through it, obey it for every project below"},
	{Group: GroupName, Pattern: "Directory.Build.targets", Reason: "MSBuild, and editors through it, obey it for every project below"},
	{Group: GroupName, Pattern: "Directory.Build.rsp", Reason: "MSBuild takes options from it for every project below"},
	{Group: GroupName, Pattern: ".mvn/", Reason: "Maven, and editors through it, load extensions and options from it"},
	{Group: GroupName, Pattern: "gradle/wrapper/", Reason: "editors run the Gradle that it names on opening the project"},
	{Group: GroupName, Pattern: "gradle.properties", Reason: "Gradle, and editors through it, take the options of its Java from it"},
	{Group: GroupName, Pattern: ".bazelrc", Reason: "Bazel, and editors through it, take options from it"},
	{Group: GroupName, Pattern: ".bazeliskrc", Reason: "Bazelisk runs the Bazel that it names"},
	{Group: GroupName, Pattern: "tools/bazel", Reason: "Bazel runs it in its own place"},

	{Group: GroupName, Pattern: ".mcp.json", Reason: "AI tools start the servers that it names"},
	{Group: GroupName, Pattern: ".claude/", Reason: "Claude Code runs its hooks and obeys its permissions"},
	{Group: GroupName, Pattern: "opencode.json", Reason: "OpenCode starts servers and plugins that it names"},
	{Group: GroupName, Pattern: "opencode.jsonc", Reason: "OpenCode starts servers and plugins that it names"},
	{Group: GroupName, Pattern: ".opencode/", Reason: "OpenCode loads its plugins and tools"},
	{Group: GroupName, Pattern: ".hermes/", Reason: "Hermes loads its settings and plugins"},
	{Group: GroupName, Pattern: ".cursor/", Reason: "Cursor starts servers and runs hooks that it names"},
	{Group: GroupName, Pattern: ".windsurf/", Reason: "Windsurf obeys its settings and workflows"},
	{Group: GroupName, Pattern: ".kiro/", Reason: "Kiro starts servers and runs hooks that it names"},
	{Group: GroupName, Pattern: ".trae/", Reason: "Trae starts servers that it names"},
	{Group: GroupName, Pattern: ".codex/", Reason: "Codex obeys its settings and starts servers that it names"},
	{Group: GroupName, Pattern: ".gemini/", Reason: "Gemini CLI starts servers and runs hooks that it names"},
	{Group: GroupName, Pattern: ".qwen/", Reason: "Qwen Code starts servers that it names"},
	{Group: GroupName, Pattern: ".continue/", Reason: "Continue starts servers that it names"},
	{Group: GroupName, Pattern: ".roo/", Reason: "Roo Code starts servers that it names"},
	{Group: GroupName, Pattern: ".kilocode/", Reason: "Kilo Code starts servers that it names"},
	{Group: GroupName, Pattern: ".clinerules/", Reason: "Cline runs its hooks"},
	{Group: GroupName, Pattern: ".junie/", Reason: "Junie starts servers that it names"},
	{Group: GroupName, Pattern: ".factory/", Reason: "Droid starts servers and runs hooks that it names"},
	{Group: GroupName, Pattern: ".augment/", Reason: "Augment obeys its settings"},
	{Group: GroupName, Pattern: ".amazonq/", Reason: "Amazon Q starts servers and runs hooks that it names"},
	{Group: GroupName, Pattern: ".agents/", Reason: "AI tools load skills, with their programs, from it"},
	{Group: GroupName, Pattern: ".goose/", Reason: "Goose starts extensions that it names"},
	{Group: GroupName, Pattern: ".crush.json", Reason: "Crush starts servers that it names"},
	{Group: GroupName, Pattern: "crush.json", Reason: "Crush starts servers that it names"},
	{Group: GroupName, Pattern: ".aider.conf.yml", Reason: "Aider runs the lint and test commands that it names"},
	{Group: GroupName, Pattern: "corral.yaml", Reason: "corral takes the policy of a sandbox from it"},

	{Group: GroupName, Pattern: ".husky/", Reason: "git runs its files as hooks"},
	{Group: GroupName, Pattern: ".githooks/", Reason: "git runs its files as hooks where core.hooksPath says so"},
	{Group: GroupName, Pattern: ".git-hooks/", Reason: "Overcommit, or git by core.hooksPath, runs its files as hooks"},
	{Group: GroupName, Pattern: ".pre-commit-config.yaml", Reason: "pre-commit runs what it names on every commit"},
	{Group: GroupName, Pattern: "prek.toml", Reason: "prek runs what it names on every commit"},
	{Group: GroupName, Pattern: "lefthook.*", Reason: "Lefthook runs what it names on every commit"},
	{Group: GroupName, Pattern: ".lefthook.*", Reason: "Lefthook runs what it names on every commit"},
	{Group: GroupName, Pattern: "lefthook-local.*", Reason: "Lefthook runs what it names on every commit"},
	{Group: GroupName, Pattern: ".lefthook/", Reason: "Lefthook runs its scripts on every commit"},
	{Group: GroupName, Pattern: ".lefthook-local/", Reason: "Lefthook runs its scripts on every commit"},
	{Group: GroupName, Pattern: ".overcommit.yml", Reason: "Overcommit runs what it names on every commit"},
	{Group: GroupName, Pattern: ".lintstagedrc*", Reason: "lint-staged runs what it names on every commit"},

	{Group: GroupName, Pattern: ".npmrc", Reason: "npm takes its registry, shell and options of Node from it"},
	{Group: GroupName, Pattern: ".yarnrc*", Reason: "Yarn runs the program at its yarnPath in its own place"},
	{Group: GroupName, Pattern: ".yarn/releases/", Reason: "Yarn runs it in its own place"},
	{Group: GroupName, Pattern: ".yarn/plugins/", Reason: "Yarn loads it"},
	{Group: GroupName, Pattern: ".pnpmfile.*", Reason: "pnpm runs it on installing"},
	{Group: GroupName, Pattern: "pnpm-workspace.yaml", Reason: "pnpm takes its settings from it: which packages run scripts, and its shell"},
	{Group: GroupName, Pattern: "bunfig.toml", Reason: "Bun loads the files that it names"},
	{Group: GroupName, Pattern: ".bundle/config", Reason: "Bundler takes its sources and paths from it"},
	{Group: GroupName, Pattern: "uv.toml", Reason: "uv takes its index from it"},
	{Group: GroupName, Pattern: "nuget.config", Reason: "NuGet takes its sources and credential providers from it"},
	{Group: GroupName, Pattern: "NuGet.Config", Reason: "NuGet takes its sources and credential providers from it"},
	{Group: GroupName, Pattern: ".gdbinit", Reason: "gdb runs it where auto-load is allowed"},
	{Group: GroupName, Pattern: ".lldbinit", Reason: "lldb runs it where it is allowed to"},
	{Group: GroupName, Pattern: ".pdbrc", Reason: "Python's debugger runs it"},
	{Group: GroupName, Pattern: ".irbrc", Reason: "Ruby's shell runs it"},
	{Group: GroupName, Pattern: ".pryrc", Reason: "Pry runs it"},
	{Group: GroupName, Pattern: ".ghci", Reason: "GHCi runs it"},
	{Group: GroupName, Pattern: ".ocamlinit", Reason: "OCaml's shell runs it"},
	{Group: GroupName, Pattern: ".iex.exs", Reason: "Elixir's shell runs it"},
	{Group: GroupName, Pattern: ".octaverc", Reason: "Octave runs it on starting"},
	{Group: GroupName, Pattern: ".Rprofile", Reason: "R runs it on starting"},
	{Group: GroupName, Pattern: ".Renviron", Reason: "R takes its environment from it on starting"},
	{Group: GroupName, Pattern: ".RData", Reason: "R loads it on starting, with any function in it"},

	{Group: GroupName, Pattern: ".github/workflows/", Reason: "GitHub runs it on a push, with the repository's secrets"},
	{Group: GroupName, Pattern: ".github/actions/", Reason: "GitHub runs it on a push, with the repository's secrets"},
	{Group: GroupName, Pattern: ".github/hooks/", Reason: "GitHub Copilot runs its hooks"},
	{Group: GroupName, Pattern: ".forgejo/workflows/", Reason: "Forgejo runs it on a push, with the repository's secrets"},
	{Group: GroupName, Pattern: ".gitea/workflows/", Reason: "Gitea runs it on a push, with the repository's secrets"},
	{Group: GroupName, Pattern: ".gitlab-ci.yml", Reason: "GitLab runs it on a push, with the repository's secrets"},
	{Group: GroupName, Pattern: ".circleci/", Reason: "CircleCI runs it on a push, with the repository's secrets"},
	{Group: GroupName, Pattern: ".buildkite/", Reason: "Buildkite runs it on a push, on its owner's machines"},
	{Group: GroupName, Pattern: ".woodpecker/", Reason: "Woodpecker runs it on a push, with the repository's secrets"},
	{Group: GroupName, Pattern: ".woodpecker.yml", Reason: "Woodpecker runs it on a push, with the repository's secrets"},
	{Group: GroupName, Pattern: ".drone.yml", Reason: "Drone runs it on a push, with the repository's secrets"},
	{Group: GroupName, Pattern: "Jenkinsfile", Reason: "Jenkins runs it on a push, with the repository's secrets"},
	{Group: GroupName, Pattern: "azure-pipelines.yml", Reason: "Azure runs it on a push, with the repository's secrets"},
	{Group: GroupName, Pattern: "bitbucket-pipelines.yml", Reason: "Bitbucket runs it on a push, with the repository's secrets"},
	{Group: GroupName, Pattern: ".builds/", Reason: "SourceHut runs it on a push"},
	{Group: GroupName, Pattern: ".build.yml", Reason: "SourceHut runs it on a push"},

	{Group: GroupNamed, Pattern: "core.hooksPath/", Reason: "git runs hooks from this directory"},
	{Group: GroupNamed, Pattern: "include.path", Reason: "git reads it as settings"},
	{Group: GroupNamed, Pattern: "core.attributesFile", Reason: "it chooses the files on which git runs drivers"},
	{Group: GroupNamed, Pattern: "an executing key", Reason: "git runs it"},
	{Group: GroupNamed, Pattern: "a symbolic link/", Reason: "a link with a name of this table points to it"},
	{Group: GroupNamed, Pattern: "a hook of corral.yaml", Reason: "the policy has corral run it on this machine"},
	{Group: GroupNamed, Pattern: "a mount of one file", Reason: "the policy leaves this one file to the agent, so something of this machine reads it"},

	{Group: GroupMode, Pattern: "set-user-ID, set-group-ID", Reason: "whoever runs it does so as its owner or with its group"},
}

// Rows that the walk asks for by name.
const (
	rowDotGit     = ".git"
	rowCommondir  = "commondir"
	rowGitdir     = "gitdir"
	rowWorktree   = "config.worktree"
	rowShape      = "HEAD, objects, refs"
	rowHooks      = "hooks/"
	rowConfig     = "config"
	rowAttributes = "info/attributes"

	rowGitmodules    = ".gitmodules"
	rowGitattributes = ".gitattributes"
	rowGitconfig     = ".gitconfig"

	rowHooksPath      = "core.hooksPath/"
	rowInclude        = "include.path"
	rowAttributesFile = "core.attributesFile"
	rowCommand        = "an executing key"
	rowLink           = "a symbolic link/"
	rowAlso           = "a hook of corral.yaml"
	rowMount          = "a mount of one file"

	rowMode = "set-user-ID, set-group-ID"

	rowDirenv     = ".direnv/"
	rowVenv       = ".venv/bin/"
	rowPlainVenv  = "venv/bin/"
	rowRebase     = "rebase-merge/"
	rowApply      = "rebase-apply/"
	rowSequencer  = "sequencer/"
	rowAlternates = "objects/info/alternates"
)

// Words for what is in no row and has to be told apart when it is printed.
const (
	rowShield = "a shield"
	rowUnseen = "not looked at"
)

// below are the rows that a git directory has besides those above.
var below = patterns(GroupGit)

func patterns(group string) []string {
	var out []string
	for _, e := range table {
		if e.Group == group {
			out = append(out, e.Pattern)
		}
	}
	return out
}

// rowOf is the row of a file in a snapshot, which has a pattern of any group
// but that of keys. One that this table does not know has no reason to give.
func rowOf(pattern string) Entry {
	for _, e := range table {
		if e.Group != GroupKey && e.Pattern == pattern {
			return e
		}
	}
	return Entry{Group: GroupName, Pattern: pattern, Reason: "another version of corral watched it"}
}

// keyRow is the row of a setting, and its name as the documentation of git
// spells it.
func keyRow(s setting) (Entry, string, bool) {
	section, sub, key, hasSub := split(s.name)
	for _, e := range keysOf[strings.ToLower(section)] {
		wantSection, wantSub, wantKey, wantHasSub := split(e.Pattern)
		switch {
		case wantKey == "*": // the whole section
			wantKey = key
		case wantHasSub != hasSub || wantSub != "*" && wantSub != sub || !strings.EqualFold(wantKey, key):
			continue
		}
		switch e.Value {
		case "!command":
			if !strings.HasPrefix(s.value, "!") {
				continue
			}
		case "an address": // and not the name of a remote
			if !strings.ContainsAny(s.value, "/:") {
				continue
			}
		}
		name := wantSection + "."
		if hasSub {
			name += sub + "."
		}
		return e, name + wantKey, true
	}
	return Entry{}, "", false
}

// keysOf are the rows of keys by section, in lower case.
var keysOf = func() map[string][]Entry {
	m := map[string][]Entry{}
	for _, e := range table {
		if e.Group == GroupKey {
			section, _, _, _ := split(e.Pattern)
			section = strings.ToLower(section)
			m[section] = append(m[section], e)
		}
	}
	return m
}()

// named are the rows of names by their first part, and globs those whose first
// part has a *.
var named, globs = func() (map[string][]string, []string) {
	m, g := map[string][]string{}, []string(nil)
	for _, pattern := range patterns(GroupName) {
		first, _, _ := strings.Cut(pattern, "/")
		if strings.Contains(first, "*") {
			g = append(g, pattern)
		} else {
			m[first] = append(m[first], pattern)
		}
	}
	return m, g
}()

// rowsAt are the patterns whose first part a name is.
func rowsAt(name string) []string {
	if rows := named[name]; rows != nil {
		return rows
	}
	for _, g := range globs {
		before, after, _ := strings.Cut(g, "*")
		if len(name) >= len(before)+len(after) && strings.HasPrefix(name, before) && strings.HasSuffix(name, after) {
			return []string{g}
		}
	}
	return nil
}
