package prompt_test

import (
	"fmt"

	"github.com/offshoot-dev/offshoot/prompt"
)

// A child's persona takes the deployment's place for that child alone, and is filled with the
// child's own values.
func Example() {
	root := prompt.New().Root()
	if _, err := root.Add(prompt.Persona("You help people on {{model}}.", false)); err != nil {
		panic(err)
	}
	child := root.Child()
	defer child.Close()
	if _, err := child.Add(prompt.Persona("You review code in {{cwd}}.", false)); err != nil {
		panic(err)
	}
	for _, scope := range []*prompt.Scope{root, child} {
		a, err := scope.Assemble(map[string]string{"model": "m-1", "cwd": "/src"}, prompt.AssembleOptions{})
		if err != nil {
			panic(err)
		}
		fmt.Println(a.System)
	}
	// Output:
	// You help people on m-1.
	// You review code in /src.
}
