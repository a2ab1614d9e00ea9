package fakeagent

// Named returns the protocol of a name, or nil.
func Named(name string) Protocol {
	switch name {
	case "acp":
		return acp
	case "claude-code":
		return claudeCode
	case "codex":
		return codex
	case "dsh":
		return dsh
	}
	return nil
}
