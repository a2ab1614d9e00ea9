// Package config is Offshoot's configuration as pure data: it loads the user's and the project's YAML files, the environment
// and the command's flags, merges them, validates the result and explains where every value came from. It starts nothing,
// connects to nothing and keeps no state between calls.
//
// # Layers
//
// Defaults, the user file, the user's agent files, the project file (offshoot.yaml in the working directory), the project's
// agent files, the environment and the flags, in this order; a later layer replaces a value of an earlier one. Tool filters
// are the exception: the deny lists of the layers add up and the allow lists intersect, because filters restrict and a later
// restriction never lifts an earlier one. Agent files of Claude Code define only agents that nothing else defines.
//
// # Strictness
//
// An unknown key at any depth, a duplicate key, a value of the wrong type, a second document, an anchor or an alias is an
// *Error with file and line. All faults of a load are reported together, ordered by file and line (core C6).
//
// # Trust
//
// What a project's files say is input, not orders. Until the person has trusted the folder they may choose models by route
// name, agents, personas, filters, output schemas, how reports are delivered and lower limits, and switch nothing on that the
// user has switched off; endpoints, stores, permission policy, MCP servers, recovery and providers that start another product
// are refused there.
//
// # Secrets
//
// No key is ever read into a Config or rendered: only whether its variable is set. Header values, the environments of MCP
// servers and passwords in URLs are not rendered either.
//
// Floor 7.
package config
