"""The graph of a step: pure data, known to every room."""

from kit.ir.graph import PHASES as PHASES
from kit.ir.graph import READ_CUTS as READ_CUTS
from kit.ir.graph import RECURRENT as RECURRENT
from kit.ir.graph import VARIABLES as VARIABLES
from kit.ir.graph import Aval as Aval
from kit.ir.graph import Graph as Graph
from kit.ir.graph import Node as Node
from kit.ir.graph import Segment as Segment
from kit.ir.roles import ROLES as ROLES
from kit.ir.roles import roles as roles
