package config

import (
	"fmt"
	"slices"
	"strings"
)

// Choice is a model that can be called: its route, its id, and why it was chosen.
type Choice struct {
	Ref    ModelRef // with the model id filled in
	Route  Route
	Source Source
}

// ChooseModel decides the root agent's model. A flag or OFFSHOOT_MODEL comes first, then the default agent's own model, then
// "model" of the project file, then of the user's. When none is said, the first of anthropic, openai, deepseek and openrouter whose key
// is set; and when there is neither a key nor any configuration file, the embedded demo. Every error is an *Error of
// KindUsage: no model, an unknown route, a route without a model, or an absent key, whose variable is named. Whether the
// route knows the model id is the endpoint's to say.
func ChooseModel(e *Effective, env Environ) (Choice, error) {
	ref, key := e.Config.Model, "model"
	src, _ := e.Source(key)
	if own := e.Config.Agents[DefaultAgent].Model; own != nil && src.Kind != FromFlag && src.Kind != FromEnv {
		ref, key = own, "agents."+DefaultAgent+".model"
	}
	if ref != nil {
		return e.Resolve(*ref, key, env)
	}
	var vars []string
	for _, name := range keyOrder() {
		r := e.Config.Routes[name]
		vars = append(vars, r.KeyEnv)
		if _, set := env.get(r.KeyEnv); set && r.Model != "" {
			return Choice{ModelRef{r.Name, r.Model}, r, Source{Kind: FromEnv, Name: r.KeyEnv}}, nil
		}
	}
	if !e.Configured() {
		r := e.Config.Routes[DemoRoute]
		return Choice{ModelRef{r.Name, r.Model}, r, Source{Kind: FromDefault}}, nil
	}
	vars = slices.DeleteFunc(vars, func(v string) bool { return v == "" })
	return Choice{}, &Error{Kind: KindUsage, Msg: fmt.Sprintf(
		"no model: give --model ROUTE:MODEL, set %s, write model: ROUTE:MODEL in %s, or set one of %s; --model %s runs the embedded demo",
		EnvModel, e.Files[0].Path, strings.Join(vars, ", "), DemoRoute)}
}

// Resolve makes a reference callable, as ChooseModel does for the root agent; key is where the reference was written, for
// the error.
func (e *Effective) Resolve(ref ModelRef, key string, env Environ) (Choice, error) {
	src, _ := e.Source(key)
	r, ok := e.Config.Routes[ref.Route]
	if !ok {
		return Choice{}, src.fault(key, unknownRoute(ref.Route, e.RouteNames()))
	}
	if ref.Model == "" {
		ref.Model = r.Model
	}
	if ref.Model == "" {
		return Choice{}, src.fault(key, fmt.Sprintf("route %s has no default model; write %s:MODEL", r.Name, r.Name))
	}
	if _, ok := r.Key(env); !ok {
		return Choice{}, src.fault(key, fmt.Sprintf("route %s needs a key: set %s", r.Name, r.KeyEnv))
	}
	return Choice{ref, r, src}, nil
}

// RouteNames lists the routes: the built-in ones in the order of their table, then the others by name.
func (e *Effective) RouteNames() []string {
	var names []string
	for _, b := range BuiltinRoutes() {
		names = append(names, b.Name)
	}
	var own []string
	for name := range e.Config.Routes {
		if builtinIndex(name) < 0 {
			own = append(own, name)
		}
	}
	slices.Sort(own)
	return append(names, own...)
}
