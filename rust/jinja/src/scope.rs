//! Assigns a slot to every variable, by the rules of Jinja2's `idtracking` module. A scope that
//! sets a name starts with the name's outer value. A name that no scope sets is looked up in the
//! variables of the rendering. A macro sees the variables around it as they are when it is called.
//! At load only.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::ast::{
    Args, Expr, ExprKind, For, Function, Load, Macro, Name, Program, Scope, SetBlock, Slot, Stmt,
    StmtKind, Target, With,
};
use crate::error::{CompileError, shortened};
use crate::names::undeclared;
use crate::parser::{Parsed, Parser};

/// Resolves all names of a template.
pub(crate) fn program(mut body: Vec<Stmt>, parser: Parser) -> Parsed<Program> {
    let mut resolver = Resolver {
        frames: Vec::new(),
        slots: vec![0],
        macros: parser.macros.into_iter().map(Some).collect(),
        loops: parser.loops.into_iter().map(Some).collect(),
        variables: Vec::new(),
        places: HashMap::new(),
        copied: 0,
    };
    let root = resolver.frame(None, 0);
    resolver.see_body(root, &body)?;
    let place = Place { frame: root, line: 1, soft: false, in_loop: false, in_for: false };
    resolver.place_body(place, &mut body)?;
    let scope = resolver.scope(root);
    Ok(Program {
        body,
        scope,
        variables: resolver.variables,
        root: Function { slots: resolver.slots.first().copied().unwrap_or(0) },
        macros: resolver.macros.into_iter().flatten().collect(),
        loops: resolver.loops.into_iter().flatten().collect(),
    })
}

/// The names of one scope.
struct Frame {
    parent: Option<usize>,
    /// How many functions are around it.
    function: usize,
    symbols: Symbols,
    /// A slot for each name that was ever seen here.
    slots: HashMap<Arc<str>, u32>,
}

/// What is known of them so far; the branches of an `if` begin with the same knowledge.
#[derive(Clone, Default)]
struct Symbols {
    refs: HashMap<Arc<str>, u32>,
    loads: Vec<(u32, Begin)>,
    stores: HashSet<Arc<str>>,
}

/// How a slot begins. Outer slots are a function and an index.
#[derive(Clone, PartialEq, Eq)]
enum Begin {
    Parameter,
    Resolve(Arc<str>),
    Alias(usize, u32),
    Nothing,
}

struct Resolver {
    frames: Vec<Frame>,
    /// Slots used by each of the functions around the current place.
    slots: Vec<u32>,
    macros: Vec<Option<Macro>>,
    loops: Vec<Option<For>>,
    variables: Vec<Arc<str>>,
    /// Where in `variables` a name is.
    places: HashMap<Arc<str>, usize>,
    /// Names copied for branches so far.
    copied: usize,
}

/// Where in the template names are being placed.
#[derive(Clone, Copy)]
struct Place {
    frame: usize,
    line: u32,
    /// Whether the code may never run: unknown filters are an error only if it does.
    soft: bool,
    in_loop: bool,
    in_for: bool,
}

// What a scope knows of names.
impl Resolver {
    fn frame(&mut self, parent: Option<usize>, function: usize) -> usize {
        let symbols = Symbols::default();
        self.frames.push(Frame { parent, function, symbols, slots: HashMap::new() });
        self.frames.len() - 1
    }

    fn inner(&mut self, parent: usize) -> usize {
        self.frame(Some(parent), self.frames[parent].function)
    }

    fn find(&self, frame: Option<usize>, name: &str) -> Option<(usize, u32)> {
        let mut at = frame;
        while let Some(frame) = at.map(|at| &self.frames[at]) {
            if let Some(index) = frame.symbols.refs.get(name) {
                return Some((frame.function, *index));
            }
            at = frame.parent;
        }
        None
    }

    fn define(&mut self, frame: usize, name: &Arc<str>, begin: Begin) -> u32 {
        let Frame { function, symbols, slots, .. } = &mut self.frames[frame];
        let used = &mut self.slots[*function];
        let index = *slots.entry(Arc::clone(name)).or_insert_with(|| {
            *used += 1;
            *used - 1
        });
        symbols.refs.insert(Arc::clone(name), index);
        symbols.begin(index, begin);
        index
    }

    fn load(&mut self, frame: usize, name: &Arc<str>) {
        if self.find(Some(frame), name).is_none() {
            self.define(frame, name, Begin::Resolve(Arc::clone(name)));
        }
    }

    fn store(&mut self, frame: usize, name: &Arc<str>) {
        self.frames[frame].symbols.stores.insert(Arc::clone(name));
        if !self.frames[frame].symbols.refs.contains_key(name) {
            let outer = self.find(self.frames[frame].parent, name);
            let begin = outer.map_or(Begin::Nothing, |(function, at)| Begin::Alias(function, at));
            self.define(frame, name, begin);
        }
    }

    fn parameter(&mut self, frame: usize, name: &Arc<str>) -> u32 {
        self.frames[frame].symbols.stores.insert(Arc::clone(name));
        self.define(frame, name, Begin::Parameter)
    }

    /// What the branches of an `if` know together.
    fn merge(&mut self, frame: usize, branches: Vec<Symbols>) {
        let before = &mut self.frames[frame].symbols;
        let mut stores: Vec<Arc<str>> = Vec::new();
        for branch in &branches {
            let new = branch.stores.iter().filter(|name| !before.stores.contains(*name));
            stores.extend(new.cloned());
        }
        for branch in branches {
            before.refs.extend(branch.refs);
            branch.loads.into_iter().for_each(|(slot, begin)| before.begin(slot, begin));
            before.stores.extend(branch.stores);
        }
        for name in stores {
            let outer = self.find(self.frames[frame].parent, &name);
            let begin = match outer {
                Some((function, index)) => Begin::Alias(function, index),
                None => Begin::Resolve(Arc::clone(&name)),
            };
            self.define(frame, &name, begin);
        }
    }

    /// The beginning of a scope, once everything in it is placed.
    fn scope(&mut self, frame: usize) -> Scope {
        let Frame { function, symbols, .. } = &self.frames[frame];
        let (variables, places) = (&mut self.variables, &mut self.places);
        let load = |(index, begin): &(u32, Begin)| {
            let load = match begin {
                Begin::Parameter => return None,
                Begin::Resolve(name) => {
                    Load::Resolve(*places.entry(Arc::clone(name)).or_insert_with(|| {
                        variables.push(Arc::clone(name));
                        variables.len() - 1
                    }))
                }
                Begin::Alias(outer, at) => Load::Alias(slot(*function, *outer, *at)),
                Begin::Nothing => Load::Nothing,
            };
            Some((*index, load))
        };
        Scope { loads: symbols.loads.iter().filter_map(load).collect() }
    }
}

impl Symbols {
    fn begin(&mut self, slot: u32, begin: Begin) {
        match self.loads.iter_mut().find(|(known, _)| *known == slot) {
            Some((_, known)) => *known = begin,
            None => self.loads.push((slot, begin)),
        }
    }
}

// The first walk, over what belongs to one scope.
impl Resolver {
    fn see_body(&mut self, frame: usize, body: &[Stmt]) -> Parsed<()> {
        body.iter().try_for_each(|stmt| self.see(frame, stmt))
    }

    fn see(&mut self, frame: usize, stmt: &Stmt) -> Parsed<()> {
        match &stmt.kind {
            StmtKind::Print(expr) => self.see_expr(frame, expr),
            StmtKind::If(branches, otherwise) => {
                return self.see_if(frame, stmt.line, branches, otherwise);
            }
            StmtKind::For(index) => {
                if let Some(each) = self.loops[*index].take() {
                    self.see_expr(frame, &each.iter);
                    self.loops[*index] = Some(each);
                }
            }
            StmtKind::Set(target, expr) => {
                self.see_expr(frame, expr);
                self.see_target(frame, target, false);
            }
            StmtKind::SetBlock(set) => self.see_target(frame, &set.target, false),
            StmtKind::With(with) => {
                with.targets.iter().for_each(|(_, value)| self.see_expr(frame, value));
            }
            StmtKind::FilterBlock(block) => self.see_expr(frame, &block.filter),
            StmtKind::Macro(name, _) => self.store(frame, &name.name),
            StmtKind::CallBlock(Some(call), _) => {
                self.see_expr(frame, &call.callee);
                self.see_args(frame, &call.args);
            }
            StmtKind::Text(_)
            | StmtKind::Scoped(..)
            | StmtKind::CallBlock(None, _)
            | StmtKind::Continue
            | StmtKind::Break
            | StmtKind::NoLoader => {}
        }
        Ok(())
    }

    /// The first branch stands alone; the other ones with a condition count as one, as in Jinja2.
    fn see_if(
        &mut self,
        frame: usize,
        line: u32,
        branches: &[(Expr, Vec<Stmt>)],
        otherwise: &[Stmt],
    ) -> Parsed<()> {
        let Some(((condition, body), elifs)) = branches.split_first() else { return Ok(()) };
        self.see_expr(frame, condition);
        let before = self.frames[frame].symbols.clone();
        self.copied = self.copied.saturating_add(before.refs.len());
        if self.copied > MAX_COPIED {
            let message = "too many names in too many branches".to_owned();
            return Err(CompileError { line, message });
        }
        self.see_body(frame, body)?;
        let first = std::mem::replace(&mut self.frames[frame].symbols, before.clone());
        for branch in elifs {
            self.see_if(frame, line, std::slice::from_ref(branch), &[])?;
        }
        let others = std::mem::replace(&mut self.frames[frame].symbols, before.clone());
        self.see_body(frame, otherwise)?;
        let last = std::mem::replace(&mut self.frames[frame].symbols, before);
        self.merge(frame, vec![first, others, last]);
        Ok(())
    }

    fn see_target(&mut self, frame: usize, target: &Target, is_parameter: bool) {
        match target {
            Target::Name(name) if is_parameter => {
                self.parameter(frame, &name.name);
            }
            Target::Name(name) => self.store(frame, &name.name),
            Target::Attribute(name, _) => self.load(frame, &name.name),
            Target::Several(targets) => {
                targets.iter().for_each(|target| self.see_target(frame, target, is_parameter));
            }
        }
    }

    fn see_args(&mut self, frame: usize, args: &Args) {
        let named = args.named.iter().map(|(_, expr)| expr);
        let all = args.positional.iter().chain(named);
        all.chain(&args.all_of)
            .chain(&args.all_named_of)
            .for_each(|expr| self.see_expr(frame, expr));
    }

    fn see_expr(&mut self, frame: usize, expr: &Expr) {
        match &expr.kind {
            ExprKind::Name(name) => self.load(frame, &name.name),
            ExprKind::Filter(call) => {
                self.see_expr(frame, &call.input);
                self.see_args(frame, &call.args);
            }
            ExprKind::Check(call) => {
                self.see_expr(frame, &call.input);
                self.see_args(frame, &call.args);
            }
            ExprKind::Call(call) => {
                self.see_expr(frame, &call.callee);
                self.see_args(frame, &call.args);
            }
            kind => kind.operands().into_iter().for_each(|expr| self.see_expr(frame, expr)),
        }
    }
}

// The second walk: slots for all names, and the scopes inside.
impl Resolver {
    fn place_body(&mut self, place: Place, body: &mut [Stmt]) -> Parsed<()> {
        body.iter_mut().try_for_each(|stmt| self.place(place, stmt))
    }

    fn place(&mut self, place: Place, stmt: &mut Stmt) -> Parsed<()> {
        let place = Place { line: stmt.line, ..place };
        let frame = place.frame;
        match &mut stmt.kind {
            StmtKind::Text(_) | StmtKind::NoLoader => Ok(()),
            StmtKind::Break | StmtKind::Continue if !place.in_loop => {
                place.fail("'break' or 'continue' outside loop")
            }
            StmtKind::Break | StmtKind::Continue => Ok(()),
            StmtKind::Print(expr) => self.place_expr(place, expr),
            StmtKind::If(branches, otherwise) => {
                let soft = Place { soft: true, ..place };
                for (condition, body) in branches {
                    self.place_expr(soft, condition)?;
                    self.place_body(soft, body)?;
                }
                self.place_body(soft, otherwise)
            }
            StmtKind::For(index) => self.place_loop(place, *index),
            StmtKind::Set(target, expr) => {
                self.place_expr(place, expr)?;
                self.place_target(place, target)
            }
            StmtKind::SetBlock(set) => self.place_set_block(place, set),
            StmtKind::With(with) => self.place_with(place, with),
            StmtKind::FilterBlock(block) => {
                let inner = place.inside(self.inner(frame));
                self.see_body(inner.frame, &block.body)?;
                self.see_expr(inner.frame, &block.filter);
                self.place_body(inner, &mut block.body)?;
                self.place_expr(inner, &mut block.filter)?;
                block.scope = self.scope(inner.frame);
                Ok(())
            }
            StmtKind::Scoped(scope, body) => {
                let inner = place.inside(self.inner(frame));
                self.see_body(inner.frame, body)?;
                self.place_body(inner, body)?;
                *scope = self.scope(inner.frame);
                Ok(())
            }
            StmtKind::Macro(name, index) => {
                self.place_macro(place, *index)?;
                self.place_name(frame, name);
                Ok(())
            }
            StmtKind::CallBlock(call, index) => {
                self.place_macro(place, *index)?;
                match call {
                    Some(call) => {
                        self.place_expr(place, &mut call.callee)?;
                        self.place_args(place, &mut call.args)
                    }
                    None => Ok(()),
                }
            }
        }
    }

    fn place_set_block(&mut self, place: Place, set: &mut SetBlock) -> Parsed<()> {
        let inner = place.inside(self.inner(place.frame));
        self.see_body(inner.frame, &set.body)?;
        self.place_body(inner, &mut set.body)?;
        set.filter.iter_mut().try_for_each(|filter| self.place_expr(inner, filter))?;
        self.place_target(place, &mut set.target)?;
        set.scope = self.scope(inner.frame);
        Ok(())
    }

    fn place_with(&mut self, place: Place, with: &mut With) -> Parsed<()> {
        let inner = place.inside(self.inner(place.frame));
        for (target, _) in &with.targets {
            self.see_target(inner.frame, target, true);
        }
        self.see_body(inner.frame, &with.body)?;
        for (target, value) in &mut with.targets {
            self.place_expr(place, value)?;
            self.place_target(inner, target)?;
        }
        self.place_body(inner, &mut with.body)?;
        with.scope = self.scope(inner.frame);
        Ok(())
    }

    fn place_loop(&mut self, place: Place, index: usize) -> Parsed<()> {
        let Some(mut each) = self.loops[index].take() else { return Ok(()) };
        self.place_expr(place, &mut each.iter)?;
        let outer = self.frames[place.frame].function;
        let function = outer + usize::from(each.recursive.is_some());
        if each.recursive.is_some() {
            self.slots.push(0);
        }
        let uses_loop = !undeclared(&["loop"], &each.body, &self.macros, &self.loops).is_empty();
        let frame = self.frame(Some(place.frame), function);
        if uses_loop || each.recursive.is_some() {
            each.loop_slot = Some(self.parameter(frame, &"loop".into()));
        }
        self.see_target(frame, &each.target, true);
        self.see_body(frame, &each.body)?;
        let inner = Place { frame, soft: false, in_loop: true, in_for: true, ..place };
        self.place_target(inner, &mut each.target)?;
        self.place_body(inner, &mut each.body)?;
        each.scope = self.scope(frame);
        if let Some((scope, target, test)) = &mut each.test {
            let frame = self.frame(Some(place.frame), function);
            self.see_target(frame, target, true);
            self.see_expr(frame, test);
            let inner = Place { frame, soft: false, ..place };
            self.place_target(inner, target)?;
            self.place_expr(inner, test)?;
            *scope = self.scope(frame);
        }
        let frame = self.frame(Some(place.frame), function);
        self.see_body(frame, &each.otherwise)?;
        let inner = Place { frame, soft: false, ..place };
        self.place_body(inner, &mut each.otherwise)?;
        each.else_scope = self.scope(frame);
        if let Some(recursive) = &mut each.recursive {
            recursive.slots = self.slots.pop().unwrap_or(0);
        }
        self.loops[index] = Some(each);
        Ok(())
    }

    fn place_macro(&mut self, place: Place, index: usize) -> Parsed<()> {
        let Some(mut definition) = self.macros[index].take() else { return Ok(()) };
        let function = self.frames[place.frame].function + 1;
        self.slots.push(0);
        let frame = self.frame(Some(place.frame), function);
        for name in &mut definition.parameters {
            let index = self.parameter(frame, &name.name);
            name.slot = Slot { hops: 0, index };
        }
        let own = |wanted: &str| definition.parameters.iter().any(|name| *name.name == *wanted);
        let explicit: Vec<_> = ["caller", "kwargs", "varargs"].into_iter().map(own).collect();
        let special = ["caller", "kwargs", "varargs"];
        let used = undeclared(&special, &definition.body, &self.macros, &self.loops);
        let mut implied = special.into_iter().zip(&explicit).map(|(name, explicit)| {
            let wanted = used.contains(&name) && !explicit;
            wanted.then(|| self.parameter(frame, &name.into()))
        });
        definition.caller = implied.next().flatten();
        definition.kwargs = implied.next().flatten();
        definition.varargs = implied.next().flatten();
        definition.explicit_caller = explicit.first() == Some(&true);
        if definition.explicit_caller && used.contains(&"caller") {
            let at = definition.parameters.iter().position(|name| *name.name == *"caller");
            let required = definition.parameters.len() - definition.defaults.len();
            if at.is_some_and(|at| at < required) {
                return place.fail("the argument 'caller' of a macro must have a default");
            }
        }
        definition.defaults.iter().for_each(|expr| self.see_expr(frame, expr));
        self.see_body(frame, &definition.body)?;
        let inner = Place { frame, soft: false, in_loop: false, ..place };
        definition.defaults.iter_mut().try_for_each(|expr| self.place_expr(inner, expr))?;
        self.place_body(inner, &mut definition.body)?;
        definition.scope = self.scope(frame);
        definition.function.slots = self.slots.pop().unwrap_or(0);
        self.macros[index] = Some(definition);
        Ok(())
    }

    fn place_name(&mut self, frame: usize, name: &mut Name) {
        self.load(frame, &name.name);
        if let Some((function, index)) = self.find(Some(frame), &name.name) {
            name.slot = slot(self.frames[frame].function, function, index);
        }
    }

    fn place_target(&mut self, place: Place, target: &mut Target) -> Parsed<()> {
        match target {
            Target::Name(name) if place.in_for && *name.name == *"loop" => {
                place.fail("Can't assign to special loop variable in for-loop target")
            }
            Target::Name(name) | Target::Attribute(name, _) => {
                self.place_name(place.frame, name);
                Ok(())
            }
            Target::Several(targets) => {
                targets.iter_mut().try_for_each(|target| self.place_target(place, target))
            }
        }
    }

    fn place_args(&mut self, place: Place, args: &mut Args) -> Parsed<()> {
        let named = args.named.iter_mut().map(|(_, expr)| expr);
        let all = args.positional.iter_mut().chain(named);
        let mut all = all.chain(&mut args.all_of).chain(&mut args.all_named_of);
        all.try_for_each(|expr| self.place_expr(place, expr))
    }

    fn place_expr(&mut self, place: Place, expr: &mut Expr) -> Parsed<()> {
        let unknown =
            |kind: &str, name: &str| place.fail(format!("No {kind} named '{}'.", shortened(name)));
        match &mut expr.kind {
            ExprKind::Name(name) => {
                self.place_name(place.frame, name);
                Ok(())
            }
            ExprKind::Filter(call) => {
                if call.filter.is_none() && !place.soft {
                    return unknown("filter", &call.name);
                }
                self.place_expr(place, &mut call.input)?;
                self.place_args(place, &mut call.args)
            }
            ExprKind::Check(call) => {
                if call.check.is_none() && !place.soft {
                    return unknown("test", &call.name);
                }
                self.place_expr(place, &mut call.input)?;
                self.place_args(place, &mut call.args)
            }
            ExprKind::Call(call) => {
                self.place_expr(place, &mut call.callee)?;
                self.place_args(place, &mut call.args)
            }
            kind => {
                let soft = place.soft || matches!(kind, ExprKind::If(_));
                let place = Place { soft, ..place };
                let operands = kind.operands_mut();
                operands.into_iter().try_for_each(|expr| self.place_expr(place, expr))
            }
        }
    }
}

impl Place {
    fn fail<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(CompileError { line: self.line, message: message.into() })
    }

    /// Inside a scope of the same function.
    fn inside(self, frame: usize) -> Self {
        Self { frame, soft: false, ..self }
    }
}

/// A slot as seen from a function.
fn slot(from: usize, function: usize, index: u32) -> Slot {
    Slot { hops: u16::try_from(from.saturating_sub(function)).unwrap_or(u16::MAX), index }
}

/// Names that are copied for the branches of conditions; published templates copy some thousands.
const MAX_COPIED: usize = 1 << 17;
